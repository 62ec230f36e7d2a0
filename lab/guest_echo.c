/* The QEMU guest's own server: UDP and TCP echo on port 7, both families, one thread.
 *
 * busybox has none. It says `ready` once it listens and ends only with the guest; a peer that does
 * not read what it is sent loses its connection after five seconds, and holds nobody up longer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* ROOM: what waits for a guest that has just been moved is echoed late, not dropped here: the
 * kernel's usual room was full after 256 small datagrams. */
enum { PORT = 7, PEERS = 64, CHUNK = 65536, ROOM = 2 << 20 };

static char buffer[CHUNK];

static int listening(int kind) {
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
    const int off = 0, on = 1, room = ROOM;
    const int fd = socket(AF_INET6, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        (kind == SOCK_DGRAM &&
         setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room)) ||
        bind(fd, (struct sockaddr *)&any, sizeof any) ||
        (kind == SOCK_STREAM && listen(fd, 16))) {
        perror("echo");
        exit(1);
    }
    return fd;
}

static void echo_datagrams(int fd) {
    struct sockaddr_in6 from;
    for (;;) {
        socklen_t size = sizeof from;
        const ssize_t got = recvfrom(fd, buffer, CHUNK, 0, (struct sockaddr *)&from, &size);
        if (got < 0)
            return;
        /* UDP loses an answer for which there is no room or no route. */
        (void)sendto(fd, buffer, (size_t)got, 0, (struct sockaddr *)&from, size);
    }
}

/* Whether the connection goes on. */
static int echo_stream(int fd) {
    const ssize_t got = recv(fd, buffer, CHUNK, MSG_DONTWAIT);
    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    for (ssize_t sent = 0; sent < got;) {
        const ssize_t part = send(fd, buffer + sent, (size_t)(got - sent), MSG_NOSIGNAL);
        if (part < 0)
            return 0;
        sent += part;
    }
    return 1;
}

static int accepted(int listener) {
    const int on = 1;
    const struct timeval patience = {.tv_sec = 5};
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    }
    return fd;
}

int main(void) {
    struct pollfd all[2 + PEERS] = {{listening(SOCK_DGRAM), POLLIN, 0},
                                    {listening(SOCK_STREAM), POLLIN, 0}};
    nfds_t count = 2;
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (poll(all, count, -1) < 0)
            continue;
        if (all[0].revents)
            echo_datagrams(all[0].fd);
        for (nfds_t i = count; i-- > 2;)
            if (all[i].revents && !echo_stream(all[i].fd)) {
                close(all[i].fd);
                all[i] = all[--count];
            }
        if (all[1].revents) {
            const int fd = accepted(all[1].fd);
            if (fd >= 0 && count < 2 + PEERS)
                all[count++] = (struct pollfd){fd, POLLIN, 0};
            else if (fd >= 0)
                close(fd);
        }
    }
}
