"""What runs: storage, the thread pool, loaded kernels, programs, the object cache, devices."""
