"""``python -m xtune``, and the ``xtune`` command."""

import sys


def main() -> int:
    """Run the command line; an interrupt while it still loads is one line too."""
    try:
        from xtune.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
