"""`python -m fedspecial` is the command `fedspecial`."""

from fedspecial.cli.main import main

if __name__ == "__main__":
    main()
