"""`penstock demo`: a whole deployment under a shop's workload, watched, and every target checked."""
