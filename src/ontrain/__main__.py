"""`python -m ontrain` is the command `ontrain`."""

from ontrain.cli import main

if __name__ == "__main__":
    main()
