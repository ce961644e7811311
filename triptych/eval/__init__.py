"""Measures of what is made, by judges that do not know how it was made."""
