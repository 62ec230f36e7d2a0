/* Starts a program of the bundle it lies in, wherever that is and whatever the host has: its own
 * loader runs its own libraries. `bin/<name>` is a link to this file; it runs `libexec/<name>`, or
 * `libexec/<name>.py` with the bundle's Python.
 * - The bundle is found by this file's real place: a process keeps the version it was started from.
 * - A shared lock on the bundle's directory is left open for the program: who prunes versions sees
 *   by it that this one is in use. Programs of other people do not get it from Python. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static char self[PATH_MAX];

/* A path below the bundle. */
static char *below(const char *directory, const char *name, const char *end) {
    char *path;
    if (asprintf(&path, "%s/%s%s%s", self, directory, name, end) < 0)
        _exit(125);
    return path;
}

/* What is ours and is not to steer the bundle's loader; and the bundle's programs, after the host's. */
static void set_environment(void) {
    const char *path = getenv("PATH");
    char *longer;
    unsetenv("LD_PRELOAD"), unsetenv("LD_LIBRARY_PATH"), unsetenv("LD_AUDIT");
    if (!path || !*path)
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    if (asprintf(&longer, "%s:%s/bin", path, self) < 0 || setenv("PATH", longer, 1) != 0)
        _exit(125);
}

/* Open and locked, beyond the standard files, for as long as the program runs. */
static void hold(void) {
    int first = open(self, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int kept = first < 0 ? -1 : fcntl(first, F_DUPFD, 3);
    if (kept >= 0)
        flock(kept, LOCK_SH | LOCK_NB);
    if (first >= 0 && first != kept)
        close(first);
}

int main(int count, char **arguments) {
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = size > 0 ? strrchr(self, '/') : NULL;
    if (count < 1 || !slash || slash == self) {
        fprintf(stderr, "%s: /proc is not mounted\n", count < 1 ? "tortie" : arguments[0]);
        return 125;
    }
    *slash = '\0';
    if ((slash = strrchr(self, '/')))
        *slash = '\0';
    const char *name = basename(arguments[0]);
    char *loader = below("lib/", "ld.so", ""), *script = below("libexec/", name, ".py");
    int python = access(script, F_OK) == 0;
    const char *program = python ? "python3" : name;
    char *head[] = {loader, "--inhibit-cache", "--library-path", below("lib", "", ""), "--argv0",
                    below("bin/", program, ""), below("libexec/", program, ""), "-IS", script};
    size_t heads = sizeof head / sizeof *head - (python ? 0 : 2);
    char **all = calloc(heads + (size_t)count + 1, sizeof *all);
    if (!all)
        return 125;
    memcpy(all, head, heads * sizeof *all);
    memcpy(all + heads, arguments + 1, (size_t)count * sizeof *all); /* with the last NULL */
    set_environment();
    hold();
    execv(loader, all);
    fprintf(stderr, "%s: cannot run %s\n", arguments[0], loader);
    return 126;
}
