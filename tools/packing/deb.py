"""placeholder"""
from pathlib import Path
from tools.packing.interpreter import Interpreter
def build(python: Interpreter, gathered: Path, work: Path, out: Path) -> Path:
    raise NotImplementedError
