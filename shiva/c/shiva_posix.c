#define _POSIX_C_SOURCE 200809L

#include "shiva_posix.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* prepare sets a socket's timeouts, and makes it send at once: shiva.c gathers small writes. */
static int prepare(int fd, unsigned seconds)
{
    struct timeval limit = {0};
    int on = 1;

    limit.tv_sec = (time_t)seconds;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
        return -1;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int shiva_connect(const char *address, unsigned seconds)
{
    struct addrinfo hints, *found, *a;
    const char *port = strrchr(address, ':');
    char host[256];
    int fd = -1, fault = EHOSTUNREACH;
    size_t n = port != NULL ? (size_t)(port - address) : 0;

    if (n > 1 && address[0] == '[' && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof host) {
        errno = EINVAL;
        return -1;
    }
    memcpy(host, address, n);
    host[n] = 0;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, port + 1, &hints, &found) != 0) {
        errno = EHOSTUNREACH;
        return -1;
    }
    for (a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd >= 0 && prepare(fd, seconds) == 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        fault = errno;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        errno = fault;
    return fd;
}

static ptrdiff_t socket_send(void *device, const void *bytes, size_t n)
{
    ssize_t sent;

    do
        sent = send((int)(intptr_t)device, bytes, n, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static ptrdiff_t socket_recv(void *device, void *bytes, size_t n)
{
    ssize_t got;

    do
        got = recv((int)(intptr_t)device, bytes, n, 0);
    while (got < 0 && errno == EINTR);
    return got;
}

struct shiva_transport shiva_socket(int socket)
{
    struct shiva_transport transport = {NULL, socket_send, socket_recv};

    transport.device = (void *)(intptr_t)socket;
    return transport;
}
