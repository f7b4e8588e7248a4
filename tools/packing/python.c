/*
 * The program of the tree: a Python that knows nothing but the directory it lies in.
 *
 * It is `durastreamd`, `dsadmin` and `ds`, told apart by argv[0] in durastreamd/__main__.py. No variable
 * of the environment, no site directory and no Python of the host has a say; text is UTF-8 whatever
 * the locale. The directory is found from the path that was executed, so that /proc is not needed.
 */

#include <Python.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#define EX_OSERR 71

static const char RUN[] = "import sys\n"
                          "from durastreamd.__main__ import main\n"
                          "sys.exit(main())\n";

static void check(PyStatus status)
{
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
}

/* Cut the path of this program down to its directory. */
static void find_root(char *root)
{
    const char *executed = (const char *)getauxval(AT_EXECFN);
    char *slash;

    if (executed == NULL || realpath(executed, root) == NULL || (slash = strrchr(root, '/')) == NULL) {
        fprintf(stderr, "durastreamd: cannot find its own files beside %s\n",
                executed ? executed : "an unnamed program");
        exit(EX_OSERR);
    }
    *slash = '\0';
}

static wchar_t *beside(const char *root, const char *name)
{
    char path[PATH_MAX + 32];
    wchar_t *wide;

    snprintf(path, sizeof path, "%s%s", root, name);
    wide = Py_DecodeLocale(path, NULL);
    if (wide == NULL) {
        fprintf(stderr, "durastreamd: cannot decode the path %s\n", path);
        exit(EX_OSERR);
    }
    return wide;
}

int main(int argc, char **argv)
{
    static const char *const PATHS[] = {"/python/stdlib", "/python/packages"};
    char root[PATH_MAX];
    PyPreConfig before;
    PyConfig config;
    wchar_t *home, *executable;

    find_root(root);
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    check(Py_PreInitialize(&before));

    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.write_bytecode = 0;
    config.install_signal_handlers = 1; /* an isolated Python leaves SIGINT and SIGPIPE alone */
    home = beside(root, "");
    executable = beside(root, "/durastreamd");
    check(PyConfig_SetString(&config, &config.home, home));
    check(PyConfig_SetString(&config, &config.prefix, home));
    check(PyConfig_SetString(&config, &config.exec_prefix, home));
    check(PyConfig_SetString(&config, &config.base_prefix, home));
    check(PyConfig_SetString(&config, &config.base_exec_prefix, home));
    check(PyConfig_SetString(&config, &config.executable, executable));
    config.module_search_paths_set = 1;
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        wchar_t *path = beside(root, PATHS[i]);
        check(PyWideStringList_Append(&config.module_search_paths, path));
        PyMem_RawFree(path);
    }
    PyMem_RawFree(home);
    PyMem_RawFree(executable);
    check(PyConfig_SetBytesArgv(&config, argc, argv));
    check(PyConfig_SetBytesString(&config, &config.run_command, RUN));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
    return Py_RunMain();
}
