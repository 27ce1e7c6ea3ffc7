"""The claims of the paper, and the rules that test them against our runs."""
