"""A conversation of thousands of turns, with a checkpoint that stays small."""
