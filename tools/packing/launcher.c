/*
 * durastreamd in one file: a static program with the whole tree inside, which it unpacks once per
 * host and user and then becomes by execve.
 *
 * Becoming, not starting: the process id stays, so readiness and watchdog messages come from the
 * service's main process, LISTEN_PID is right, and no signal has to be passed on. The tree brings
 * its own dynamic loader and C library, so the host needs neither; nor /proc, nor a shell.
 *
 * A place for the tree must be the user's own, writable by nobody else, and allow execution. In it
 * a tree is named by its contents and its path, and appears by one rename. Every start compares it
 * with the list below, and makes it again when a cleaner of temporary files has bitten into it or a
 * power cut has left files short; so it need not be synced, which can take long on a busy disk. A
 * running server holds a shared lock on its tree: systemd-tmpfiles then spares it, and so does a
 * newer version, which clears away the trees nobody uses.
 *
 * tools/packing/executable.py writes tree.h (the list) and the two blobs it refers to.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zstd.h>

struct entry {
    const char *name;
    mode_t mode; /* a directory, or the permissions of a file */
    off_t size;
};

/* ENTRIES, KEY, and for each path within PROGRAM: its offset, its room, its name in the tree */
#include "tree.h"

#define EX_CANTCREAT 73
#define LOCK_FD_MIN 16 /* above standard streams and the few sockets a service manager hands over */

extern const char tree_start[], tree_end[];
__asm__(".section .rodata\n"
        ".balign 16\n"
        ".global tree_start\n"
        "tree_start:\n"
        ".incbin \"" TREE_FILE "\"\n"
        ".global tree_end\n"
        "tree_end:\n"
        ".byte 0\n"
        ".previous\n");

static char why[4096]; /* a line for each place that was no good */

static int refuse(const char *place, const char *reason)
{
    size_t used = strlen(why);

    snprintf(why + used, sizeof why - used, "durastreamd:   %s: %s\n", place, reason);
    return -1;
}

static int refuse_errno(const char *place)
{
    return refuse(place, strerror(errno));
}

/* ---- the tree: is it whole, write it, remove it ---- */

static int whole(int tree)
{
    struct stat found;

    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++) {
        const struct entry *wanted = &ENTRIES[i];
        if (fstatat(tree, wanted->name, &found, AT_SYMLINK_NOFOLLOW) != 0)
            return 0;
        if ((found.st_mode & S_IFMT) != (wanted->mode & S_IFMT))
            return 0;
        if (S_ISREG(wanted->mode) && found.st_size != wanted->size)
            return 0;
    }
    return 1;
}

static void remove_all(int parent, const char *name)
{
    DIR *listing;
    struct dirent *child;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || (listing = fdopendir(fd)) == NULL) {
        if (fd >= 0)
            close(fd);
        unlinkat(parent, name, 0);
        return;
    }
    while ((child = readdir(listing)) != NULL) {
        if (strcmp(child->d_name, ".") == 0 || strcmp(child->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, child->d_name, 0) != 0)
            remove_all(fd, child->d_name);
    }
    closedir(listing);
    unlinkat(parent, name, AT_REMOVEDIR);
}

static int write_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t done = write(fd, bytes, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        bytes += done;
        count -= (size_t)done;
    }
    return 0;
}

/* Fill `bytes` with the next `count` bytes of the compressed contents. */
static int pull(char *bytes, size_t count, ZSTD_DStream *stream, ZSTD_inBuffer *in)
{
    ZSTD_outBuffer out = {bytes, count, 0};

    while (out.pos < count) {
        size_t before = out.pos;
        size_t hint = ZSTD_decompressStream(stream, &out, in);
        if (ZSTD_isError(hint) || (out.pos == before && in->pos == in->size)) {
            errno = EILSEQ; /* the executable itself is damaged */
            return -1;
        }
    }
    return 0;
}

/* Say in the program where its loader and libraries will be: the kernel takes absolute paths. */
static int settle(char *program, const char *path)
{
    for (size_t i = 0; i < sizeof SETTLED / sizeof *SETTLED; i++) {
        char *text = program + SETTLED[i].offset;
        memset(text, 0, SETTLED_SIZE);
        if (snprintf(text, SETTLED_SIZE, "%s/%s", path, SETTLED[i].name) >= SETTLED_SIZE) {
            errno = ENAMETOOLONG;
            return -1;
        }
    }
    return 0;
}

/* The program is written once, settled: a file written twice may be stale at its full size. */
static int write_file(int fd, const struct entry *wanted, const char *path, ZSTD_DStream *stream,
                      ZSTD_inBuffer *in)
{
    static char buffer[1 << 17];
    int is_program = strcmp(wanted->name, PROGRAM) == 0;
    off_t left = wanted->size;

    if (is_program && left > (off_t)sizeof buffer) {
        errno = EFBIG;
        return -1;
    }
    while (left > 0) {
        size_t count = left < (off_t)sizeof buffer ? (size_t)left : sizeof buffer;
        if (pull(buffer, count, stream, in) != 0 || (is_program && settle(buffer, path) != 0) ||
            write_all(fd, buffer, count) != 0)
            return -1;
        left -= (off_t)count;
    }
    return 0;
}

static int unpack(int tree, const char *path)
{
    ZSTD_inBuffer in = {tree_start, (size_t)(tree_end - tree_start), 0};
    ZSTD_DStream *stream = ZSTD_createDStream();

    if (stream == NULL) {
        errno = ENOMEM;
        return -1;
    }
    for (size_t i = 0; i < sizeof ENTRIES / sizeof *ENTRIES; i++) {
        const struct entry *wanted = &ENTRIES[i];
        int fd, failed;

        if (S_ISDIR(wanted->mode)) {
            if (mkdirat(tree, wanted->name, 0700) != 0)
                return -1;
            continue;
        }
        fd = openat(tree, wanted->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    wanted->mode & 0700);
        if (fd < 0)
            return -1;
        failed = write_file(fd, wanted, path, stream, &in) != 0;
        if (close(fd) != 0 || failed)
            return -1;
    }
    ZSTD_freeDStream(stream);
    return 0;
}

/* ---- a place: a directory for trees ---- */

static uint64_t fnv1a(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

/* Open the tree `name` and hold it; -1 if it is not there or not whole. */
static int hold(int place, const char *name)
{
    struct stat held, named;
    int tree = openat(place, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (tree < 0)
        return -1;
    /* Between opening and locking it may have been cleared away by a newer version. */
    if (flock(tree, LOCK_SH) == 0 && fstat(tree, &held) == 0 &&
        fstatat(place, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_ino == named.st_ino &&
        whole(tree))
        return tree;
    close(tree);
    return -1;
}

/* Remove what other versions left, unless a running server holds it. */
static void clear_others(int place, const char *name)
{
    struct dirent *child;
    int copy = openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = copy < 0 ? NULL : fdopendir(copy);

    while (listing != NULL && (child = readdir(listing)) != NULL) {
        int tree;
        if (strncmp(child->d_name, "tree-", 5) != 0 || strcmp(child->d_name, name) == 0)
            continue;
        tree = openat(place, child->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (tree < 0)
            continue;
        if (flock(tree, LOCK_EX | LOCK_NB) == 0)
            remove_all(place, child->d_name);
        close(tree);
    }
    if (listing != NULL)
        closedir(listing);
}

/* Make the tree `name`, one process at a time; -1 with errno set. */
static int make(int place, const char *name, const char *path)
{
    static const char DRAFT[] = "draft";
    int tree = -1, held, error;
    int lock = openat(place, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    if (lock < 0 || flock(lock, LOCK_EX) != 0)
        return -1;
    held = hold(place, name); /* another process may have made it while this one waited */
    if (held < 0) {
        remove_all(place, DRAFT);
        if (mkdirat(place, DRAFT, 0700) == 0)
            tree = openat(place, DRAFT, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (tree >= 0 && unpack(tree, path) == 0) {
            remove_all(place, name);
            if (renameat(place, DRAFT, place, name) == 0)
                held = hold(place, name);
            clear_others(place, name);
        }
        error = errno;
        if (held < 0)
            remove_all(place, DRAFT);
        if (tree >= 0)
            close(tree);
        errno = error;
    }
    close(lock);
    return held;
}

/* Make sure that no stranger can exchange a directory on the way to `path`. */
static int check_way(const char *path)
{
    char way[PATH_MAX];
    struct stat found;

    snprintf(way, sizeof way, "%s", path);
    for (;;) {
        char *slash = strrchr(way, '/');
        slash[slash == way] = '\0';
        if (stat(way, &found) != 0)
            return refuse_errno(path);
        if ((found.st_uid != 0 && found.st_uid != geteuid()) ||
            ((found.st_mode & 022) != 0 && (found.st_mode & S_ISVTX) == 0))
            return refuse(path, "another user may change a directory above it");
        if (slash == way)
            return 0;
    }
}

enum trust { OF_MANAGER, OF_USER }; /* who vouches for the way to a place */

/* Become the server from a tree in `path`; returns only when that place is no good. */
static int become(const char *path, enum trust trust, char **argv)
{
    char name[64], tree_path[SETTLED_SIZE - 16], program[SETTLED_SIZE];
    struct stat found;
    struct statvfs mounted;
    int held, place;

    snprintf(name, sizeof name, "tree-%s-%016llx", KEY, (unsigned long long)fnv1a(path));
    if (snprintf(tree_path, sizeof tree_path, "%s/%s", path, name) >= (int)sizeof tree_path)
        return refuse(path, "the path is too long");
    if (trust == OF_USER && check_way(path) != 0)
        return -1;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return refuse_errno(path);
    place = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (trust == OF_USER ? O_NOFOLLOW : 0));
    if (place < 0 || fstat(place, &found) != 0 || fstatvfs(place, &mounted) != 0)
        return refuse_errno(path);
    if (found.st_uid != geteuid() || (found.st_mode & 022) != 0)
        return refuse(path, "it is another user's, or others may write to it");
    if (mounted.f_flag & ST_NOEXEC)
        return refuse(path, "it is mounted noexec");
    held = hold(place, name);
    if (held < 0)
        held = make(place, name, tree_path);
    if (held < 0) {
        refuse_errno(path);
        close(place);
        return -1;
    }
    close(place);
    /* The copy survives execve, and with it the lock. */
    fcntl(held, F_DUPFD, LOCK_FD_MIN);
    snprintf(program, sizeof program, "%s/%s", tree_path, PROGRAM);
    execve(program, argv, environ);
    return refuse_errno(path);
}

/* ---- the places, best first ---- */

static int become_below(const char *base, const char *name, char **argv)
{
    char path[PATH_MAX];

    if (base == NULL || base[0] != '/' || strlen(base) > PATH_MAX - 64)
        return -1;
    snprintf(path, sizeof path, "%s/%s", base, name);
    return become(path, OF_USER, argv);
}

static void make_parents(const char *path)
{
    char way[PATH_MAX];

    snprintf(way, sizeof way, "%s", path);
    for (char *slash = strchr(way + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(way, 0755);
        *slash = '/';
    }
}

int main(int argc, char **argv)
{
    const char *given = secure_getenv("CACHE_DIRECTORY"); /* systemd's CacheDirectory= */
    const char *home = secure_getenv("HOME");
    char own[64], cache[PATH_MAX];
    static const char *const SHARED[] = {"/var/tmp", "/tmp", "/dev/shm"};

    (void)argc;
    if (given != NULL && given[0] == '/' && strlen(given) < PATH_MAX) {
        snprintf(cache, sizeof cache, "%.*s", (int)strcspn(given, ":"), given);
        become(cache, OF_MANAGER, argv);
    }
    if (geteuid() == 0) {
        make_parents("/var/cache/durastreamd");
        become("/var/cache/durastreamd", OF_USER, argv);
    }
    become_below(secure_getenv("XDG_CACHE_HOME"), "durastreamd", argv);
    if (home != NULL && home[0] == '/' && strlen(home) < PATH_MAX - 64 && access(home, W_OK) == 0) {
        snprintf(cache, sizeof cache, "%s/.cache", home);
        mkdir(cache, 0700);
        become_below(cache, "durastreamd", argv);
    }
    snprintf(own, sizeof own, "durastreamd-%lu", (unsigned long)geteuid());
    become_below(secure_getenv("TMPDIR"), own, argv);
    for (size_t i = 0; i < sizeof SHARED / sizeof *SHARED; i++)
        become_below(SHARED[i], own, argv);
    fprintf(stderr,
            "durastreamd: found no directory to unpack into:\n%s"
            "durastreamd: set CACHE_DIRECTORY to a directory of this user's that allows execution\n",
            why);
    return EX_CANTCREAT;
}
