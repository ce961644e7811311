"""What the command line can do. A verb is two functions: one describes its arguments, one runs it.

Both import what they need themselves, and nothing heavy is imported at the top, so that `triptych --help` answers at
once. To add a verb, write its two functions and add a line to the VERBS of its module.
"""
