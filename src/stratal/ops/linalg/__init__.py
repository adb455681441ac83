"""Factorisations and solvers of matrices; they run on the host, by LAPACK."""
