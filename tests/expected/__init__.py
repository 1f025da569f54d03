"""What each public sample file holds, one module a folder of samples."""
