"""The native CPU kernels: C++ sources, their build on first use and their ctypes binding."""
