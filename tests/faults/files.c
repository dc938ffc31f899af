/* Breaks the n-th file operation below one folder, in a process that preloads it (LD_PRELOAD).
 *
 * Operations create, write, truncate, sync, rename and delete. `how` selects the fault at the n-th:
 *   0 none (operations are counted); 1 the process is killed before it; 2 the process is killed
 *   after it, or in the middle of a write; 3 the disk is full from then on, so writing and creating
 *   fail; 4 only the n-th operation fails, with EIO; 5 as 3, with the user's quota full.
 * It is armed by fault_arm(), or at the start by FAULT_FOLDER, FAULT_AT and FAULT_HOW.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL_BEFORE, KILL_AFTER, FULL, BROKEN, QUOTA };
static char folder[PATH_MAX];
static int at, how, count;

void fault_arm(const char *path, int number, int what) {
    strncpy(folder, path, sizeof folder - 1);
    at = number, how = what, count = 0;
}

int fault_count(void) { return count; }

__attribute__((constructor)) static void arm_by_environment(void) {
    if (getenv("FAULT_FOLDER")) fault_arm(getenv("FAULT_FOLDER"), atoi(getenv("FAULT_AT")), atoi(getenv("FAULT_HOW")));
}

static int below_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!folder[0] || length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int below(int dirfd, const char *path) {
    char here[PATH_MAX];
    if (!folder[0]) return 0;
    if (path[0] == '/') return strncmp(path, folder, strlen(folder)) == 0;
    if (dirfd != AT_FDCWD) return below_fd(dirfd);
    return getcwd(here, sizeof here) && strncmp(here, folder, strlen(folder)) == 0;
}

static void die(void) { kill(getpid(), SIGKILL); pause(); }

/* Returns whether the operation must fail, and sets errno; `last`: the process dies after it. */
static int strike(int writes, int *last) {
    int number = __sync_add_and_fetch(&count, 1);
    *last = 0;
    if (how == FULL && number >= at && writes) return errno = ENOSPC, 1;
    if (how == QUOTA && number >= at && writes) return errno = EDQUOT, 1;
    if (number != at) return 0;
    if (how == KILL_BEFORE) die();
    if (how == KILL_AFTER) *last = 1;
    return how == BROKEN ? (errno = EIO, 1) : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(inside, writes, call)                     \
    int last = 0;                                      \
    if ((inside) && strike(writes, &last)) return -1;  \
    __typeof__(call) result = call;                    \
    if (last) die();                                   \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    int last = 0;
    if (below_fd(fd)) {
        if (strike(1, &last)) return -1;
        if (last) REAL(write)(fd, data, size / 2), die();
    }
    return REAL(write)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int number) { WRAP(below_fd(fd), 1, REAL(writev)(fd, parts, number)); }
int fsync(int fd) { WRAP(below_fd(fd), 0, REAL(fsync)(fd)); }
int fdatasync(int fd) { WRAP(below_fd(fd), 0, REAL(fdatasync)(fd)); }
int ftruncate(int fd, off_t size) { WRAP(below_fd(fd), 0, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { WRAP(below_fd(fd), 0, REAL(ftruncate64)(fd, size)); }
int rename(const char *from, const char *to) { WRAP(below(AT_FDCWD, to), 0, REAL(rename)(from, to)); }
int unlink(const char *path) { WRAP(below(AT_FDCWD, path), 0, REAL(unlink)(path)); }
int unlinkat(int dirfd, const char *path, int flags) { WRAP(below(dirfd, path), 0, REAL(unlinkat)(dirfd, path, flags)); }
int rmdir(const char *path) { WRAP(below(AT_FDCWD, path), 0, REAL(rmdir)(path)); }
int mkdir(const char *path, mode_t mode) { WRAP(below(AT_FDCWD, path), 1, REAL(mkdir)(path, mode)); }

static mode_t mode_of(int flags, va_list rest) { return flags & O_CREAT ? va_arg(rest, mode_t) : 0; }
#define OPEN(name, dirfd, call)                                             \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = mode_of(flags, rest);                                     \
    va_end(rest);                                                           \
    WRAP((flags & O_CREAT) && below(dirfd, path), 1, call)

int open(const char *path, int flags, ...) { OPEN(open, AT_FDCWD, REAL(open)(path, flags, mode)); }
int open64(const char *path, int flags, ...) { OPEN(open64, AT_FDCWD, REAL(open64)(path, flags, mode)); }
int openat(int dirfd, const char *path, int flags, ...) { OPEN(openat, dirfd, REAL(openat)(dirfd, path, flags, mode)); }
int openat64(int dirfd, const char *path, int flags, ...) { OPEN(openat64, dirfd, REAL(openat64)(dirfd, path, flags, mode)); }
