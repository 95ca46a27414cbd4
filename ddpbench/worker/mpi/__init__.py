"""The backend `mpi`, which uses an MPI library as a process group of torch, under any launcher."""
