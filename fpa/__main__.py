"""``python -m fpa``: the command line."""

from fpa.cli import main

if __name__ == "__main__":
    main()
