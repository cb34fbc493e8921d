"""`penstock up`: a whole deployment on one machine, each part a supervised process."""
