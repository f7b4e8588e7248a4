"""What tests are built from: a simulated disk, a plain model of the engine, crash enumeration."""
