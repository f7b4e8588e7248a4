"""What the programs share: how a command is declared, where it writes, how it ends.

``status`` has the exit statuses of durastreamd, dsadmin and dspipeline, ``command`` what a command
of one of them is made of and how it is run, ``console`` where it writes and how it shows progress
(``progress`` is the bar),
``show`` how names, times, sizes and tables look. Standard library alone, and rich where somebody
looks at a terminal: imported when it is needed, so that the server does without.
"""
