"""``python -m xtune``."""

import sys

from xtune.cli import main

sys.exit(main())
