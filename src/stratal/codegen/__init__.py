"""From loop IR to LLVM text to object code, and the native driver: everything that knows about LLVM."""
