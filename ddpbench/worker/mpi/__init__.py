"""The backend `mpi`: an MPI library as a process group of torch, under any launcher."""
