package shiva

import (
	"os"
	"syscall"
)

// createShared makes a file of the given size, without pages yet, and maps it.
func createShared(path string, size int64) (*os.File, []byte, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, nil, err
	}
	var mem []byte
	if err = file.Truncate(size); err == nil {
		mem, err = syscall.Mmap(int(file.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	}
	if err != nil {
		_ = os.Remove(path)
		file.Close()
		return nil, nil, err
	}
	return file, mem, nil
}

// backShared allocates pages for a part of the file.
func backShared(file *os.File, offset, size int64) error {
	return syscall.Fallocate(int(file.Fd()), 0, offset, size)
}

func unmapShared(mem []byte) { _ = syscall.Munmap(mem) }
