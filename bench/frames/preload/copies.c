// Counts the bytes that a process copies, preloaded into programs that use the C library: copies in
// memory by memcpy and memmove, from 1 KiB on, and bytes that sockets' own calls move between the
// kernel and the process. The bytes of read and write are in /proc/PID/io. The count is the first
// eight bytes of a file in the directory $COPIES, which forks share.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned long long nowhere, *count = &nowhere;

// REAL is the library's function of a name.
#define REAL(name) ({ static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

static void *(*real_memmove)(void *, const void *, size_t);

__attribute__((constructor)) static void begin(void) {
    const char *directory = getenv("COPIES");
    char path[4096];
    real_memmove = dlsym(RTLD_NEXT, "memmove");
    if (!directory) return;
    snprintf(path, sizeof path, "%s/%d-XXXXXX", directory, (int)getpid());
    int fd = mkstemp(path);
    if (fd < 0 || ftruncate(fd, 8)) return;
    void *p = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) count = p;
    close(fd);
}

static ssize_t copied(ssize_t bytes) {
    if (bytes > 0) __atomic_fetch_add(count, bytes, __ATOMIC_RELAXED);
    return bytes;
}

// The loader and dlsym copy before the real memmove is known.
static void *early(char *to, const char *from, size_t n) {
    if (to <= from)
        for (size_t i = 0; i < n; i++) ((volatile char *)to)[i] = from[i];
    else
        while (n--) ((volatile char *)to)[n] = from[n];
    return to;
}

void *memmove(void *to, const void *from, size_t n) {
    if (n >= 1024) copied(n);
    return real_memmove ? real_memmove(to, from, n) : early(to, from, n);
}
void *memcpy(void *to, const void *from, size_t n) { return memmove(to, from, n); }
void *mempcpy(void *to, const void *from, size_t n) { return (char *)memmove(to, from, n) + n; }
void *__memcpy_chk(void *to, const void *from, size_t n, size_t room) { return n > room ? (abort(), NULL) : memmove(to, from, n); }
void *__memmove_chk(void *to, const void *from, size_t n, size_t room) { return n > room ? (abort(), NULL) : memmove(to, from, n); }

ssize_t recv(int fd, void *p, size_t n, int flags) { return copied(REAL(recv)(fd, p, n, flags)); }
ssize_t send(int fd, const void *p, size_t n, int flags) { return copied(REAL(send)(fd, p, n, flags)); }
ssize_t recvmsg(int fd, struct msghdr *m, int flags) { return copied(REAL(recvmsg)(fd, m, flags)); }
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) { return copied(REAL(sendmsg)(fd, m, flags)); }
ssize_t recvfrom(int fd, void *p, size_t n, int flags, struct sockaddr *a, socklen_t *size) {
    return copied(REAL(recvfrom)(fd, p, n, flags, a, size));
}
ssize_t sendto(int fd, const void *p, size_t n, int flags, const struct sockaddr *a, socklen_t size) {
    return copied(REAL(sendto)(fd, p, n, flags, a, size));
}
