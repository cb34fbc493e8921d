"""What each command decides for its keys.

An action takes a reader (the state under the latches of the keys), the command's arguments, and an
`Effects` to fill; it answers with a value or raises `Refused`. No action does I/O beyond reading, looks
at a clock, or waits.
"""
