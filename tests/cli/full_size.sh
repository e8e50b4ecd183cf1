# The released layout at full size; the work is in tests/full_size.
exec bash tests/full_size/run.sh
