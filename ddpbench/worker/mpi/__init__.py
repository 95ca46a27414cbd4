"""The backend `mpi`: an MPI library as a process group of torch, whoever started the ranks."""
