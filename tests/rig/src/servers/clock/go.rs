//! A clock for programs in Go, which do not ask the C library what time it is.
//!
//! They ask the kernel's own small library that is mapped into every process, and find it by what the kernel says at
//! the start. A library that is loaded first says something else instead: where an image of the same form lies that
//! adds the offset.

use std::path::{Path, PathBuf};

use super::{CC, ServerError, write};

/// The image. It is not linked with anything, and finds the offset on the page before it.
const IMAGE: &str = r#"
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#ifndef __x86_64__
#error "the clock of a server in Go can be stepped on x86-64 only"
#endif

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

static int shown(clockid_t id, struct timespec *time) {
    long done;
    __asm__ volatile("syscall"
                     : "=a"(done)
                     : "0"(SYS_clock_gettime), "D"(id), "S"(time)
                     : "rcx", "r11", "memory");
    if (done == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t offset = *(volatile const int64_t *)(__ehdr_start - 4096);
        int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + offset;
        time->tv_sec = ns / 1000000000;
        time->tv_nsec = ns % 1000000000;
    }
    return (int)done;
}

int __vdso_clock_gettime(clockid_t id, struct timespec *time) { return shown(id, time); }

int __vdso_gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    shown(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

/// As the kernel's own one has it.
const VERSIONS: &str = "LINUX_2.6 { global: __vdso_clock_gettime; __vdso_gettimeofday; local: *; };\n";

/// Maps the image before the program starts, and says that it is the kernel's.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096

__attribute__((constructor)) static void attach(int argc, char **argv, char **envp) {
    const char *path = getenv("DLOCK_CLOCK_OFFSET");
    int offset = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    int image = open(IMAGE, O_RDONLY | O_CLOEXEC);
    struct stat file;
    (void)argc, (void)argv;
    if (offset < 0 || image < 0 || fstat(image, &file) != 0) abort();
    char *place = mmap(NULL, PAGE + file.st_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED
        || mmap(place, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, offset, 0) == MAP_FAILED
        || mmap(place + PAGE, file.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, image, 0) == MAP_FAILED)
        abort();
    close(offset);
    close(image);
    while (*envp) envp++;
    for (Elf64_auxv_t *entry = (Elf64_auxv_t *)(envp + 1); entry->a_type != AT_NULL; entry++)
        if (entry->a_type == AT_SYSINFO_EHDR) entry->a_un.a_val = (uint64_t)(uintptr_t)(place + PAGE);
}
"#;

/// Compiles both into `directory`, and returns what is to be loaded first.
pub(super) fn compile(directory: &Path) -> Result<PathBuf, ServerError> {
    let file = |name: &str| directory.join(name).display().to_string();
    let (image, versions, library) = (file("clock_image.so"), file("clock.versions"), file("clock_go.so"));
    write(&directory.join("clock_image.c"), IMAGE)?;
    write(&directory.join("clock.versions"), VERSIONS)?;
    write(&directory.join("clock_go.c"), SOURCE)?;
    let shared = ["-shared", "-fPIC", "-O2", "-Wall", "-o"];
    let bare = ["-nostdlib", "-fno-stack-protector", "-Wl,-z,noseparate-code", "-Wl,--hash-style=both"];
    let versions = format!("-Wl,--version-script={versions}");
    CC.run(shared.into_iter().chain([&*image, &*file("clock_image.c"), &*versions]).chain(bare))?;
    let where_it_is = format!("-DIMAGE=\"{image}\"");
    CC.run(shared.into_iter().chain([&*library, &*file("clock_go.c"), &*where_it_is]))?;
    Ok(library.into())
}
