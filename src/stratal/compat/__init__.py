"""Names of other libraries, for programs written for them."""
