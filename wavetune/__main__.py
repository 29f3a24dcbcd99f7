"""``python -m wavetune``."""

from wavetune.cli import main

if __name__ == "__main__":
    main()
