/* The CNI executable in C: what shim.py promises, without Python. Every size is bounded before use.
 * - Nobody listens (ENOENT, ECONNREFUSED): run the fallback in our place; stdin is still unread.
 * - Anything else is CNI error 11, "try again" (STATUS: 50, soon): once bytes were sent the agent
 *   may have done the work, and running it a second time beside it is what must never happen. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/times.h>
#include <sys/un.h>
#include <unistd.h>

#define ASKED_STATUS (getenv("CNI_COMMAND") && strcmp(getenv("CNI_COMMAND"), "STATUS") == 0)
enum { MAX_BODY = 4 << 20, MAX_STDIN = MAX_BODY / 2, HEAD = 12, TICKS = 100 };

/* Set by the installer in the finished file: neither const nor static, so never compiled in. */
struct { char mark[16], socket[108], fallback[256], deadline[16]; } constants = {
    "TORTIE-SHIM-1", "/run/tortie/cni.sock", "/opt/tortie/bin/tortie-cni", "170"};

static char input[MAX_STDIN + 2]; /* one byte to see that there are too many, one of zero */
static size_t input_size;
static struct { char magic[4]; uint32_t first, second; char rest[MAX_BODY]; } frame;

/* Whether a failed call is worth another try. A descriptor that would not wait is made to. */
static int again(int fd) {
    return errno == EINTR ||
           (errno == EAGAIN && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0);
}

/* Write everything and leave. */
static _Noreturn void finish(const char *output, size_t size, int status) {
    while (size > 0) {
        ssize_t done = write(1, output, size);
        if (done < 0 && !again(1))
            _exit(1);
        if (done > 0)
            output += done, size -= (size_t)done;
    }
    _exit(status);
}

/* The configuration's cniVersion by its bytes; 1.0.0 when there is none to be seen. */
static const char *version(void) {
    static char at[64], end;
    const char *key = memmem(input, input_size, "\"cniVersion\"", 12);
    return key && sscanf(key + 12, " : \"%63[0-9.]%c", at, &end) == 2 && end == '"' ? at : "1.0.0";
}

/* Print a CNI error and end with status 1. */
static _Noreturn void fail(int code, const char *format, ...) {
    char output[1200], *text = output;
    text += sprintf(output, "{\"cniVersion\":\"%s\",\"code\":%d,\"msg\":\"", version(),
                    code == 11 && ASKED_STATUS ? 50 : code);
    va_list values;
    va_start(values, format);
    vsnprintf(text, 1000, format, values);
    for (; *text; text++)
        if (*text < ' ' || *text > '~' || *text == '"' || *text == '\\')
            *text = '?';
    strcpy(text, "\"}\n");
    finish(output, strlen(output), 1);
}

/* Standard input, bounded. One that cannot be read is as good as empty: the agent says so. */
static void read_input(void) {
    ssize_t got;
    while ((got = read(0, input + input_size, MAX_STDIN + 1 - input_size)) > 0 ||
           (got < 0 && again(0)))
        if ((input_size += got > 0 ? (size_t)got : 0) > MAX_STDIN)
            fail(6, "the network configuration on stdin exceeds %d bytes", MAX_STDIN);
}

/* A connection to the agent; does not return when there is none. */
static int connected(char **arguments) {
    struct sockaddr_un agent = {.sun_family = AF_UNIX};
    memcpy(agent.sun_path, constants.socket, sizeof agent.sun_path);
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock >= 0 && connect(sock, (struct sockaddr *)&agent, sizeof agent) == 0)
        return sock;
    int error = errno, absent = error == ENOENT || error == ECONNREFUSED;
    if (absent)
        execv(arguments[0] = constants.fallback, arguments);
    int there = errno == ENOENT && access(constants.fallback, F_OK) == 0;
    const char *why = there ? "its interpreter is missing" : strerror(errno);
    read_input(); /* for its cniVersion */
    if (!absent)
        fail(11, "the agent at %s is not answering: %s", constants.socket, strerror(error));
    fail(11, "no agent listens at %s and %s cannot run: %s", constants.socket, arguments[0], why);
}

/* Put the CNI_ variables into the frame, of two with one name the first; their size. */
static size_t gather(char **environment) {
    size_t size = 0;
    for (char **item = environment, **first = item; *item; first = environment, item++) {
        size_t length = strlen(*item), name = strcspn(*item, "=") + 1;
        while (strncmp(*first, *item, name) != 0)
            first++;
        if (strncmp(*item, "CNI_", 4) != 0 || name > length || first != item)
            continue;
        if (4 + size + length + 1 + input_size > MAX_BODY)
            fail(4, "the CNI_ environment is too large");
        memcpy(frame.rest + size, *item, length + 1);
        size += length + 1;
    }
    return size ? size - 1 : 0; /* without the last one's zero */
}

/* Send or receive every byte, until the clock (which only goes forward) reads `end`. */
static void transfer(int sock, void *data, size_t size, short event, clock_t end) {
    for (ssize_t done = 0; size > 0; data = (char *)data + done, size -= (size_t)done) {
        struct pollfd ready = {.fd = sock, .events = event};
        clock_t left = end - times(NULL);
        if (left <= 0 || poll(&ready, 1, (int)(left * 1000 / TICKS)) == 0)
            fail(11, "the agent did not answer within %s seconds", constants.deadline);
        done = event == POLLIN ? read(sock, data, size) : write(sock, data, size);
        if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
            fail(11, "the agent broke the connection; what it did will be completed by a retry");
        done = done < 0 ? 0 : done;
    }
}

int main(int count, char **arguments) {
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an error of write(2) */
    for (int fd = 0; fd < 3; fd++) /* one that is closed would become the socket's */
        if (count < 1 || (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0))
            return 1;
    int sock = connected(arguments);
    read_input();
    size_t size = gather(environ);
    if (ASKED_STATUS)
        sprintf(constants.deadline, "%g", atof(constants.deadline) / 5);
    memcpy(frame.magic, "TTR1", 4);
    frame.first = htonl((uint32_t)(4 + size + input_size)), frame.second = htonl((uint32_t)size);
    clock_t end = times(NULL) + (clock_t)(atof(constants.deadline) * TICKS);
    transfer(sock, &frame, HEAD + size, POLLOUT, end);
    transfer(sock, input, input_size, POLLOUT, end);
    transfer(sock, &frame, HEAD, POLLIN, end);
    uint32_t status = ntohl(frame.first), length = ntohl(frame.second);
    if (memcmp(frame.magic, "TTA1", 4) != 0 || length > MAX_BODY)
        fail(11, "the agent answered with something that is not a frame of ours");
    transfer(sock, frame.rest, length, POLLIN, end);
    finish(frame.rest, length, status > 255 ? 255 : (int)status);
}
