//! The database as files: making it, and finding out whether the path still leads to the database that is open.

use std::ffi::OsString;
use std::fs::{Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dlock_core::Failure;

use super::failure::of_file;
use crate::text::number;

/// Makes an empty file that only its owner may use. SQLite gives its other files the same rights.
///
/// A file that is there is not touched: closing it again would take away the locks that SQLite has on it in this
/// process.
///
/// Other users who can write to the directory could have put a symbolic link there: a new file is never made through
/// one.
pub(super) fn create(path: &Path) -> Result<(), Failure> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(of_file(error, "making", path)),
    }
}

/// Refuses a path that cannot be a database of locks, with a better reason than SQLite would give.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Err(Failure::invalid_config(format!(
            "{} is a directory; give the path of a file in it",
            path.display()
        ))),
        Ok(found) if !found.is_file() => {
            Err(Failure::invalid_config(format!("{} is not a regular file", path.display())))
        }
        Ok(found) if found.nlink() > 1 => Err(linked(path)),
        Ok(found) => refuse_strangers(path, &found)
            .and_then(|()| refuse_network(path))
            .and_then(|()| refuse_mount(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::invalid_config(if path.is_symlink() {
                format!("{} is a symbolic link to nothing; make its target or remove it", path.display())
            } else {
                format!(
                    "there is no database at {}; connect, migrate or `dlock run` makes it",
                    path.display()
                )
            }))
        }
        Err(error) => Err(of_file(error, "opening", path)),
    }
}

/// Refuses a file with several names: SQLite keeps the log beside the one by which it was opened, so that processes
/// that open it by another one share nothing with it.
pub(super) fn linked(path: &Path) -> Failure {
    Failure::invalid_config(format!(
        "{0} has several names (hard links), and whoever opens it by another one does not see the locks that are held by this one; \
         remove the others (find them by find / -xdev -samefile {0}), or copy the file instead",
        path.display()
    ))
}

/// Refuses a file that was mounted by itself: SQLite keeps the log beside the place where it is mounted, so that
/// processes that open it in its own directory share nothing with it. They cannot see that it is mounted elsewhere;
/// processes that open it there can. This holds for a log, or an area of locks, over which another one was mounted,
/// too.
#[cfg(target_os = "linux")]
fn refuse_mount(path: &Path) -> Result<(), Failure> {
    let files = Files::of(path)?;
    for file in [&files.real, &files.log, &files.locks] {
        match is_mount(file) {
            Ok(false) => {}
            Ok(true) => return Err(mounted(file)),
            Err(error) => {
                let shown = file.display();
                let what = format!("whether {shown} was mounted by itself cannot be found out; mount /proc");
                return Err(Failure::invalid_config(what).with_source(error));
            }
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn mounted(path: &Path) -> Failure {
    Failure::invalid_config(format!(
        "{} is a file that was mounted by itself, into a container for instance, and whoever opens it elsewhere does not see the locks \
         that are held here; mount its directory instead",
        path.display()
    ))
}

/// Returns `true` if the file is on another mount than its directory. A file that is not there, or not there any more,
/// is not.
#[cfg(target_os = "linux")]
pub(super) fn is_mount(path: &Path) -> std::io::Result<bool> {
    use std::fs::File;
    use std::io::{Error, ErrorKind};
    use std::os::fd::AsRawFd;

    // The name may be a link: the mounts of the file itself and of its own directory are compared.
    // Opened for its path only, a file can be closed without taking away the locks that SQLite has on it.
    let open = |path: &Path| OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH).open(path);
    let mount = |file: &File| {
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
        let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        id.map(|id| id.trim().to_owned()).ok_or_else(|| Error::other("/proc/self/fdinfo names no mount"))
    };
    let opened =
        path.canonicalize().and_then(|real| Ok((open(&real)?, open(real.parent().unwrap_or(&real))?)));
    match opened {
        Ok((file, directory)) => Ok(mount(&file)? != mount(&directory)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_mount(_: &Path) -> Result<(), Failure> {
    Ok(())
}

/// Returns `true` if this user is that of the process, or the administrator. Always `true` on other systems than Linux,
/// where that is not known.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || std::fs::metadata("/proc/self").map_or(true, |process| process.uid() == user)
}

/// Refuses a file of another user that everybody can write: it may have been put there on purpose, as in a directory
/// for temporary files.
fn refuse_strangers(path: &Path, found: &Metadata) -> Result<(), Failure> {
    if found.mode() & 0o002 == 0 || is_trusted(found.uid()) {
        return Ok(());
    }
    Err(Failure::invalid_config(format!(
        "{} belongs to another user and can be written by everybody, so that anybody could take or end its locks; share it by a group \
         instead (chmod o-w)",
        path.display()
    )))
}

/// Refuses a file on a network file system: file locks and shared memory, on which SQLite relies, do not work between
/// hosts.
#[cfg(target_os = "linux")]
fn refuse_network(path: &Path) -> Result<(), Failure> {
    let kind = nix::sys::statfs::statfs(path)
        .map_err(|error| of_file(error.into(), "asking for the file system of", path))?
        .filesystem_type();
    // The type of the number is another on each target.
    #[allow(clippy::unnecessary_cast)]
    let kind = kind.0 as i64 & 0xFFFF_FFFF;
    let name = if kind == FUSE { shared_by_fuse(path) } else { network_name(kind) };
    match name {
        None => Ok(()),
        Some(name) => Err(Failure::invalid_config(format!(
            "{} lies on {name}, where SQLite cannot lock; use a local disk, or another backend between hosts",
            path.display()
        ))),
    }
}

#[cfg(target_os = "linux")]
fn network_name(kind: i64) -> Option<&'static str> {
    // Numbers of statfs(2).
    match kind {
        0x6969 => Some("NFS"),
        0x517B | 0xFE53_4D42 | 0xFF53_4D42 => Some("SMB"),
        0x00C3_6400 => Some("Ceph"),
        0x5346_414F | 0x6B41_4653 => Some("AFS"),
        0x0BD0_0BD0 => Some("Lustre"),
        0x0102_1997 => Some("9P"),
        0x0116_1970 => Some("GFS2"),
        0x7461_636F => Some("OCFS2"),
        0x4750_4653 => Some("GPFS"),
        0x1983_0326 => Some("BeeGFS"),
        0xAAD7_AAEA => Some("PanFS"),
        0x7375_7245 => Some("Coda"),
        0x786F_4256 => Some("a folder shared by VirtualBox"),
        0xBACB_ACBC => Some("a folder shared by VMware"),
        0x6A65_6A63 => Some("a folder shared by Docker Desktop"),
        _ => None,
    }
}

/// The number of file systems that a program provides: some are local, others are shared by hosts.
#[cfg(target_os = "linux")]
const FUSE: i64 = 0x6573_5546;

/// The file systems of programs that hosts share, as they are named where they are mounted.
#[cfg(target_os = "linux")]
const SHARED: &[(&str, &str)] = &[
    ("fuse.sshfs", "SSHFS"),
    ("fuse.glusterfs", "GlusterFS"),
    ("fuse.ceph", "Ceph"),
    ("fuse.ceph-fuse", "Ceph"),
    ("fuse.s3fs", "s3fs"),
    ("fuse.gcsfuse", "gcsfuse"),
    ("fuse.rclone", "rclone"),
    ("fuse.juicefs", "JuiceFS"),
    ("fuse.seaweedfs", "SeaweedFS"),
    ("fuse.moosefs", "MooseFS"),
    ("fuse.mfsmount", "MooseFS"),
    ("fuse.lizardfs", "LizardFS"),
    ("fuse.vmhgfs-fuse", "a folder shared by VMware"),
    ("virtiofs", "a folder shared with a host"),
    ("fuse.grpcfuse", "a folder shared by Docker Desktop"),
    ("fuse.osxfs", "a folder shared by Docker Desktop"),
    ("fuse.prl_fsd", "a folder shared by Parallels"),
    ("fuse.mountpoint-s3", "Mountpoint for Amazon S3"),
    ("fuse.goofys", "goofys"),
    ("fuse.geesefs", "GeeseFS"),
    ("fuse.tigrisfs", "TigrisFS"),
    ("fuse.blobfuse", "blobfuse"),
    ("fuse.blobfuse2", "blobfuse"),
    ("fuse.ossfs", "ossfs"),
    ("fuse.ossfs2", "ossfs"),
    ("fuse.cosfs", "COSFS"),
    ("fuse.obsfs", "obsfs"),
    ("fuse.objectivefs", "ObjectiveFS"),
    ("fuse.cunofs", "cunoFS"),
    ("fuse.google-drive-ocamlfuse", "Google Drive"),
    ("fuse.alluxio-fuse", "Alluxio"),
    ("fuse.fuse_dfs", "HDFS"),
    ("fuse.dfuse", "DAOS"),
    ("fuse.quobyte", "Quobyte"),
    ("fuse.curlftpfs", "CurlFtpFS"),
    ("fuse.davfs", "davfs2"),
];

#[cfg(target_os = "linux")]
fn shared_by_fuse(path: &Path) -> Option<&'static str> {
    let device = path.metadata().ok()?.dev();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let device = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    mounted_as(&mounts, &device).and_then(shared_name)
}

/// Returns the name of a shared file system of a program. Some are recognised by their source alone.
#[cfg(target_os = "linux")]
fn shared_name((kind, source): (&str, &str)) -> Option<&'static str> {
    let is_named = |of: &str| of == kind || kind == "fuse" && of.strip_prefix("fuse.") == Some(source);
    let named = SHARED.iter().find(|(of, _)| is_named(of)).map(|(_, name)| *name);
    named.or_else(|| (kind == "fuse" && source.starts_with("http")).then_some("WebDAV"))
}

/// Returns the kind and the source of the file system of a device, `major:minor`, by the lines of
/// proc_pid_mountinfo(5).
#[cfg(target_os = "linux")]
fn mounted_as<'m>(mounts: &'m str, device: &str) -> Option<(&'m str, &'m str)> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let mut fields = line.split_once(" - ")?.1.split(' ');
    Some((fields.next()?, fields.next().unwrap_or_default()))
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_: &Path) -> Result<(), Failure> {
    Ok(())
}

/// The database file and the two that SQLite keeps beside it while it is open, each by device and inode.
///
/// A database is the three together: with a log or a lock area of its own, a process does not see the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity([(u64, u64); 3]);

impl Identity {
    /// Returns `true` if the database itself is the same file, whatever lies beside it.
    pub(super) fn is_file_of(&self, other: &Self) -> bool {
        self.0[0] == other.0[0]
    }

    /// Returns a number for this identity that is equal in every process of the host.
    pub(super) fn number(&self) -> u64 {
        number(self.to_bytes())
    }

    /// Returns the stored form.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|(device, inode)| [*device, *inode]).flat_map(u64::to_be_bytes).collect()
    }
}

/// The file that stands at the path now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Database(Identity),
    /// A file that has another name too.
    Linked(Identity),
    Nothing,
}

/// The paths of the database's files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Files {
    /// The path as it was given.
    path: PathBuf,
    /// The path without symbolic links: what SQLite and dlock keep beside a database is beside this one.
    real: PathBuf,
    log: PathBuf,
    locks: PathBuf,
}

impl Files {
    pub(super) fn of(path: &Path) -> Result<Self, Failure> {
        let real = path.canonicalize().map_err(|error| of_file(error, "finding", path))?;
        let beside = |suffix: &str| {
            let mut name = OsString::from(&real);
            name.push(suffix);
            PathBuf::from(name)
        };
        Ok(Self { path: path.to_owned(), log: beside("-wal"), locks: beside("-shm"), real })
    }

    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Looks at the files. Three quick system calls.
    pub(super) fn look(&self) -> std::io::Result<Found> {
        let (mut identity, mut names) = ([(0, 0); 3], [0; 3]);
        // The path as it was given: a link that was turned to another database is noticed.
        for (n, path) in [&self.path, &self.log, &self.locks].into_iter().enumerate() {
            (identity[n], names[n]) = match path.metadata() {
                Ok(found) => ((found.dev(), found.ino()), found.nlink()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => ((0, 0), 0),
                Err(error) => return Err(error),
            };
        }
        Ok(match (identity[0], names[0]) {
            ((0, 0), _) => Found::Nothing,
            (_, 0 | 1) => Found::Database(Identity(identity)),
            _ => Found::Linked(Identity(identity)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_to_its_inodes_and_a_new_file_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        assert!(Files::of(&path).is_err());
        create(&path).unwrap();
        let files = Files::of(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let Found::Database(alone) = files.look().unwrap() else { panic!("it was made") };
        std::fs::write(directory.path().join("a.db-wal"), "").unwrap();
        let Found::Database(with_log) = files.look().unwrap() else { panic!("it is there") };
        assert_ne!(alone, with_log);
        assert_ne!(alone.number(), with_log.number());
        assert!(alone.is_file_of(&with_log));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.look().unwrap(), Found::Nothing);
    }

    #[test]
    fn a_new_file_is_never_made_through_a_symbolic_link() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("a.db"), directory.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        create(&link).unwrap();
        assert!(!target.exists());
        assert!(check(&link).unwrap_err().message().contains("symbolic link"));
        std::fs::write(&target, "").unwrap();
        check(&link).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_mounted_by_itself_is_on_another_mount_than_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("a.db"), directory.path().join("link"));
        create(&path).unwrap();
        assert!(!is_mount(&path).unwrap());
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(is_mount(&link).unwrap() && is_mount(Path::new("/proc")).unwrap());
        assert!(!is_mount(&directory.path().join("b.db")).unwrap(), "it is not there");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_database_over_whose_log_or_area_of_locks_something_is_mounted_is_refused() {
        for beside in ["a.db-wal", "a.db-shm"] {
            let directory = tempfile::tempdir().unwrap();
            let (path, beside) = (directory.path().join("a.db"), directory.path().join(beside));
            create(&path).unwrap();
            std::fs::write(&beside, "").unwrap();
            check(&path).unwrap();
            std::fs::remove_file(&beside).unwrap();
            // Leads to another mount than its directory's, without the right to mount anything.
            std::os::unix::fs::symlink("/proc", &beside).unwrap();
            let refused = check(&path).unwrap_err();
            let names = refused.message().contains(&*beside.to_string_lossy());
            assert!(names && refused.message().contains("mounted by itself"), "{refused}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xFF53_4D42), Some("SMB"));
        for local in [0xEF53, 0x0102_1994, 0x794C_7630, 0x9123_683E, 0x5846_5342] {
            assert_eq!(network_name(local), None, "{local:x}");
        }
        assert_eq!(network_name(0x0102_1997), Some("9P"));
        assert_eq!(network_name(0x6A65_6A63), Some("a folder shared by Docker Desktop"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn file_systems_of_programs_are_known_by_their_mounts() {
        let mounts = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      90 24 0:52 / /srv/a\\040b rw,nosuid shared:40 master:2 - fuse.sshfs app@host:/srv rw,user_id=0\n\
                      91 24 0:53 / /merged rw - fuse.fuse-overlayfs fuse-overlayfs rw\n\
                      92 24 0:54 / /s3 rw - fuse mountpoint-s3 rw,user_id=0\n\
                      93 24 0:55 / /work rw - fuse.grpcfuse grpcfuse rw\n\
                      95 24 0:57 / /dav rw - fuse https://example.com/dav rw\n\
                      96 24 0:58 / /ntfs rw - fuseblk /dev/sdb1 rw\n\
                      97 24 0:59 / /zip rw - fuse archivemount rw\n";
        assert_eq!(mounted_as(mounts, "0:52").and_then(shared_name), Some("SSHFS"));
        assert_eq!(mounted_as(mounts, "0:53").and_then(shared_name), None);
        for (device, name) in [("0:54", "S3"), ("0:55", "Docker"), ("0:57", "WebDAV")] {
            assert!(mounted_as(mounts, device).and_then(shared_name).unwrap().contains(name), "{device}");
        }
        for local in ["0:58", "0:59"] {
            assert_eq!(mounted_as(mounts, local).and_then(shared_name), None, "{local}");
        }
        assert_eq!(mounted_as(mounts, "254:0"), Some(("ext4", "/dev/vda")));
        assert_eq!(mounted_as(mounts, "0:5"), None);
    }
}
