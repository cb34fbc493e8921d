"""`penstock up`: a whole deployment on one machine, each part a process that is looked after."""
