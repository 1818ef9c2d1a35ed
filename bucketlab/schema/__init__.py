"""The documents that are stored and printed, as typed structs with a version each. Plain data, no logic."""
