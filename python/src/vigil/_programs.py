"""Commands of the wheel that carries the program."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def controller() -> NoReturn:
    """Become the program that was installed beside this command under the name vigil."""
    folder = os.path.dirname(os.path.realpath(sys.argv[0]))
    program = os.path.join(folder, "vigil")
    try:
        os.execv(program, [program] + sys.argv[1:])
    except OSError as error:
        sys.exit("controller: run %s: %s" % (program, error.strerror))
