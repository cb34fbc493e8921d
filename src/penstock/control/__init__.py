"""Operations on a deployment and views of it. The commands and the API both call these."""
