package arena

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// create makes a memfd that begins with the token and maps it. Its size takes no memory: pages
// exist once they are written.
func create(size int64, token []byte, writable bool) (fd int, mem []byte, err error) {
	// A file beyond this limit would raise SIGXFSZ, which ends the process.
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err == nil && uint64(size) > most.Cur {
		return 0, nil, fmt.Errorf("arena: a segment of %d bytes exceeds the limit on the size of files (ulimit -f), %d",
			size, most.Cur)
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	// Required where vm.memfd_noexec is 2.
	fd, err = unix.MemfdCreate("shivad-arena", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("shivad-arena", flags)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("arena: memfd_create: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("arena: a segment of %d bytes: %w", size, err)
			if mem != nil {
				Unmap(mem)
			}
			shut(fd)
		}
	}()
	if err = unix.Fchmod(fd, 0o600); err != nil {
		return fd, nil, err
	}
	if err = unix.Ftruncate(fd, size); err != nil {
		return fd, nil, err
	}
	if mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return fd, nil, err
	}
	copy(mem, token)
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP) // clients' data: keep it out of core dumps
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if !writable {
		seals |= unix.F_SEAL_FUTURE_WRITE // our own mapping exists already
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return fd, mem, err
}

func shut(fd int) { _ = unix.Close(fd) }

// Map maps a segment of another process, as described by its offer, for a container. It fails if
// another file is at path. The memory stays until Unmap.
func Map(path string, size int64, token []byte, writable bool) (mem []byte, err error) {
	flags, prot := unix.O_RDONLY, unix.PROT_READ
	if writable {
		flags, prot = unix.O_RDWR, unix.PROT_READ|unix.PROT_WRITE
	}
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 ||
		st.Size != size {
		return nil, fmt.Errorf("%s is another file: the server runs in another PID namespace", path)
	}
	if mem, err = unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return nil, fmt.Errorf("map %d bytes of %s: %w", size, path, err)
	}
	if len(token) != tokenSize || !bytes.Equal(mem[:tokenSize], token) {
		Unmap(mem)
		return nil, fmt.Errorf("%s is another segment: the server runs in another PID namespace", path)
	}
	return mem, nil
}

// Unmap unmaps memory of Map.
func Unmap(mem []byte) { _ = unix.Munmap(mem) } // cannot fail for a whole mapping
