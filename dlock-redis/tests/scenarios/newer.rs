//! Writes in the order of the data, whoever gets the lock when.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock_core::{DataVersion, ErrorKind, Fence, VersionCheck};
use dlock_redis::{Redis, fence_key, fenced_script, newer_script};
use dlock_rig::proxy::Loss;
use dlock_rig::servers::redis::RedisServer;

use crate::support::{LONG, Proxied, error_of, over, take};

/// What `fenced_script` made before there were versions.
const FENCES_ALONE: &str = "local fence, seen = ARGV[#ARGV], redis.call('GET', KEYS[#KEYS])
if seen and (#seen > #fence or (#seen == #fence and seen > fence)) then
  return redis.error_reply('STALE the fence ' .. fence .. ' is lower than ' .. seen)
end
redis.call('SET', KEYS[#KEYS], fence)
return redis.call('SET', KEYS[1], ARGV[1])";

async fn started() -> (RedisServer, Redis) {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    (server, redis)
}

fn v(number: i64) -> DataVersion {
    DataVersion::new(number)
}

fn f(number: u64) -> Option<Fence> {
    Some(Fence::new(number))
}

fn older(stored: i64) -> VersionCheck {
    VersionCheck::Older { stored: v(stored) }
}

/// So many minutes past seven.
fn past_seven(minutes: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_762_800 + minutes * 60)
}

#[tokio::test]
async fn data_of_seven_never_follows_data_of_five_past_seven_whoever_gets_the_lock_first() {
    let (server, redis) = started().await;
    let locks = over(redis.clone(), LONG);
    let (a, b) = (DataVersion::at(past_seven(0)).unwrap(), DataVersion::at(past_seven(5)).unwrap());
    for (first, second, key) in [(b, a, "late"), (a, b, "early")] {
        for (at, version) in [first, second].into_iter().enumerate() {
            let guard = take(&locks, key).await;
            let check = redis.write_if_newer(key, version.to_string(), version, guard.fence()).await.unwrap();
            let expected = if at == 1 && version == a {
                VersionCheck::Older { stored: b }
            } else {
                VersionCheck::Accepted
            };
            assert_eq!(check, expected, "{key}");
            guard.release().await.unwrap();
        }
        assert_eq!(server.command::<String>(&["GET", key]), b.to_string(), "{key}");
    }
    // The fence alone has it the other way round: who had the lock last wins.
    for version in [b, a] {
        let guard = take(&locks, "fenced").await;
        let fence = guard.fence().unwrap();
        assert!(redis.fenced_set("fenced", version.to_string(), fence).await.unwrap());
        guard.release().await.unwrap();
    }
    assert_eq!(server.command::<String>(&["GET", "fenced"]), a.to_string());
}

#[tokio::test]
async fn versions_are_compared_exactly_over_all_64_bits() {
    let (server, redis) = started().await;
    let double = 1_i64 << 53;
    let grows = [
        i64::MIN,
        i64::MIN + 1,
        -double - 1,
        -double,
        -10,
        -9,
        -1,
        0,
        1,
        9,
        10,
        double,
        double + 1,
        i64::MAX - 1,
        i64::MAX,
    ];
    for (at, &number) in grows.iter().enumerate() {
        let write =
            async |number: i64| redis.write_if_newer("k", number.to_string(), v(number), None).await.unwrap();
        assert_eq!(write(number).await, VersionCheck::Accepted, "{number}");
        assert_eq!(write(number).await, VersionCheck::AlreadyThere, "{number}");
        for &lower in &grows[..at] {
            assert_eq!(write(lower).await, older(number), "{lower}");
        }
        assert_eq!(server.command::<String>(&["GET", "k"]), number.to_string());
    }
    assert_eq!(server.command::<String>(&["HGET", &fence_key("k"), "version"]), i64::MAX.to_string());
}

#[tokio::test]
async fn fence_and_version_are_checked_in_one_step_and_what_is_refused_changes_neither() {
    let (server, redis) = started().await;
    let write = async |value: &str, version: i64, fence: u64| {
        redis.write_if_newer("k", value, v(version), f(fence)).await
    };
    let is = |value: &str, version: i64, fence: u64| {
        assert_eq!(server.command::<String>(&["GET", "k"]), value);
        let known: Vec<String> = server.command(&["HMGET", &fence_key("k"), "version", "fence"]);
        assert_eq!(known, [version.to_string(), fence.to_string()]);
    };
    assert_eq!(write("a", 100, 7).await.unwrap(), VersionCheck::Accepted);
    assert_eq!(write("b", 101, 7).await.unwrap(), VersionCheck::Accepted, "the same grant may write again");
    // A holder that was overtaken, with newer data.
    assert_eq!(write("c", 102, 9).await.unwrap(), VersionCheck::Accepted);
    let error = error_of(write("d", 103, 8).await, ErrorKind::Lost);
    assert!(error.to_string().contains("the fence 8 is stale"), "{error}");
    error_of(write("d", 102, 8).await, ErrorKind::Lost);
    is("c", 102, 9);
    // The holder of the moment, with older data.
    assert_eq!(write("e", 101, 10).await.unwrap(), older(102));
    assert_eq!(write("e", 102, 10).await.unwrap(), VersionCheck::AlreadyThere);
    is("c", 102, 9);
    assert_eq!(write("f", 103, u64::MAX).await.unwrap(), VersionCheck::Accepted);
    error_of(write("g", 104, u64::MAX - 1).await, ErrorKind::Lost);
    is("f", 103, u64::MAX);
}

#[tokio::test]
async fn a_key_is_written_in_one_way_and_the_others_are_refused_with_what_to_do() {
    let (server, redis) = started().await;
    let memory = fence_key("k");
    let fenced = fenced_script("return redis.call('SET', KEYS[1], ARGV[1])");
    let newer = newer_script("return redis.call('SET', KEYS[1], ARGV[1])");
    let by_fence = |script: &str| server.try_command::<()>(&["EVAL", script, "2", "k", &memory, "x", "99"]);
    let by_version =
        |fence: &str| server.try_command::<()>(&["EVAL", &newer, "2", "k", &memory, "x", "99", fence]);
    for way in ["fences", "versions", "both"] {
        server.command::<()>(&["FLUSHALL"]);
        match way {
            "fences" => assert!(redis.fenced_set("k", "mine", Fence::new(7)).await.unwrap()),
            "versions" => assert!(redis.write_if_newer("k", "mine", v(7), None).await.unwrap().is_accepted()),
            _ => assert!(redis.write_if_newer("k", "mine", v(7), f(7)).await.unwrap().is_accepted()),
        }
        let before = server.command::<Vec<u8>>(&["DUMP", &memory]);
        let mut refused = Vec::new();
        if way != "fences" {
            refused.push(redis.fenced_set("k", "x", Fence::new(99)).await.map(drop));
            assert_eq!(by_fence(&fenced).unwrap_err().code(), Some("MIXED"), "{way}");
            // A program from before versions.
            assert_eq!(by_fence(FENCES_ALONE).unwrap_err().code(), Some("WRONGTYPE"), "{way}");
        }
        if way != "versions" {
            refused.push(redis.write_if_newer("k", "x", v(99), None).await.map(drop));
            assert_eq!(by_version("").unwrap_err().code(), Some("MIXED"), "{way}");
        }
        if way != "both" {
            refused.push(redis.write_if_newer("k", "x", v(99), f(99)).await.map(drop));
            assert_eq!(by_version("99").unwrap_err().code(), Some("MIXED"), "{way}");
        }
        assert_eq!(refused.len(), 2);
        for refused in refused {
            let error = error_of(refused, ErrorKind::Conflict);
            assert!(error.to_string().contains("delete \"{k}:fence\""), "{error}");
        }
        assert_eq!(server.command::<String>(&["GET", "k"]), "mine", "{way}");
        assert_eq!(server.command::<Vec<u8>>(&["DUMP", &memory]), before, "{way}");
        // As it says.
        server.command::<()>(&["DEL", &memory]);
        assert!(redis.write_if_newer("k", "anew", v(1), None).await.unwrap().is_accepted(), "{way}");
    }
}

#[tokio::test]
async fn what_stands_in_the_place_of_a_version_is_an_error_and_stays() {
    let (server, redis) = started().await;
    server.command::<()>(&["HSET", &fence_key("k"), "version", "20000000000000000000", "fence", ""]);
    let error = error_of(redis.write_if_newer("k", "x", v(1), None).await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("holds no version"), "{error}");
    server.command::<()>(&["DEL", &fence_key("k")]);
    server.command::<()>(&["LPUSH", &fence_key("k"), "data"]);
    error_of(redis.write_if_newer("k", "x", v(1), None).await, ErrorKind::Conflict);
    error_of(redis.fenced_set("k", "x", Fence::new(1)).await, ErrorKind::Conflict);
    assert_eq!(server.command::<u64>(&["EXISTS", "k"]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_writers_at_once_the_newest_data_stays() {
    const EACH: i64 = 40;
    let (server, redis) = started().await;
    let other = Redis::connect(&server.url()).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let redis = if writer % 2 == 0 { redis.clone() } else { other.clone() };
        writers.spawn(async move {
            let mut accepted = Vec::new();
            for n in 0..EACH {
                // Each of 0 to 319 once, in an order of each writer's own.
                let version = (n * 37 % EACH) * 8 + writer;
                let write = redis.write_if_newer("k", version.to_string(), v(version), None);
                match write.await.unwrap() {
                    VersionCheck::Accepted => accepted.push(version),
                    VersionCheck::Older { stored } => assert!(stored > v(version)),
                    VersionCheck::AlreadyThere => panic!("{version} was written once"),
                }
            }
            accepted
        });
    }
    for accepted in writers.join_all().await {
        assert!(accepted.is_sorted_by(|one, next| one < next), "{accepted:?}");
    }
    assert_eq!(server.command::<String>(&["GET", "k"]), (EACH * 8 - 1).to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_of_other_clients_accepts_versions_that_grow_and_none_twice() {
    let server = RedisServer::start().unwrap();
    let script = newer_script("return redis.call('RPUSH', KEYS[1], ARGV[#ARGV - 1])");
    std::thread::scope(|scope| {
        for writer in 0..8_i64 {
            let (server, script) = (&server, &script);
            scope.spawn(move || {
                for n in 0..25_i64 {
                    let version = ((n * 7 % 25) * 8 + writer - 100).to_string();
                    let call = ["EVAL", script, "2", "k", "{k}:fence", &version, ""];
                    for expected in [&["OLDER"][..], &["OLDER", "SAME"]] {
                        if let Err(refused) = server.try_command::<i64>(&call) {
                            assert!(expected.contains(&refused.code().unwrap()), "{refused}");
                        } else {
                            assert!(!expected.contains(&"SAME"), "{version} was accepted twice");
                        }
                    }
                }
            });
        }
    });
    let accepted: Vec<i64> = server.command(&["LRANGE", "k", "0", "-1"]);
    assert!(accepted.is_sorted_by(|one, next| one < next), "{accepted:?}");
    assert_eq!(accepted.last(), Some(&99));
}

#[tokio::test]
async fn the_script_of_other_clients_takes_whole_numbers_only_and_refuses_stale_fences() {
    let server = RedisServer::start().unwrap();
    let script = newer_script("redis.call('SET', KEYS[1], ARGV[1])\nreturn ARGV[1]");
    let write = |version: &str, fence: &str| {
        server.try_command::<String>(&["EVAL", &script, "2", "k", "{k}:fence", version, version, fence])
    };
    let wrong =
        ["", "x", "1.5", "1e3", "+1", " 1", "--1", "-", "9223372036854775808", "-9223372036854775809"];
    for wrong in wrong {
        let refused = write(wrong, "7").unwrap_err();
        assert!(refused.to_string().contains("64 bits"), "{wrong:?}: {refused}");
    }
    for wrong in ["x", "-1", "1.5", "18446744073709551616"] {
        assert!(write("1", wrong).unwrap_err().to_string().contains("64 bits"), "{wrong:?}");
    }
    assert!(server.keys().is_empty());
    assert_eq!(write("-0", "007").unwrap(), "-0");
    for same in ["0", "-00", "0000000000000000000000"] {
        assert_eq!(write(same, "7").unwrap_err().code(), Some("SAME"), "{same:?}");
    }
    assert_eq!(write("-000000000000000000000001", "7").unwrap_err().code(), Some("OLDER"));
    assert_eq!(write("2", "6").unwrap_err().code(), Some("STALE"));
    assert_eq!(write("00000000000000000000000000002", "7").unwrap(), "00000000000000000000000000002");
    let known: Vec<String> = server.command(&["HMGET", "{k}:fence", "version", "fence"]);
    assert_eq!(known, ["2", "7"]);
}

#[tokio::test]
async fn a_version_whose_body_failed_does_not_count() {
    let server = RedisServer::start().unwrap();
    let run = |body: &str, version: &str| {
        let script = newer_script(body);
        server.try_command::<i64>(&["EVAL", &script, "2", "k", "{k}:fence", version, ""])
    };
    let failing = ["redis.call('INCRBY', KEYS[1], 'x')", "return redis.error_reply('NO')", "error('no')"];
    for (version, count) in [("4", 1), ("6", 2)] {
        for failing in failing {
            assert!(run(failing, version).is_err(), "{failing}");
        }
        assert_eq!(run("return redis.call('INCR', KEYS[1])", version).unwrap(), count);
    }
    assert_eq!(run("return 1", "5").unwrap_err().code(), Some("OLDER"));
}

#[tokio::test]
async fn a_write_whose_reply_was_lost_is_there_when_it_is_repeated() {
    let on = Proxied::start();
    let redis = Redis::connect(&on.url()).await.unwrap();
    assert!(redis.write_if_newer("k", "before", v(1), None).await.unwrap().is_accepted());
    on.proxy.lose_reply(1, "EVAL", Loss::Cut);
    error_of(redis.write_if_newer("k", "mine", v(2), None).await, ErrorKind::Unknown);
    assert_eq!(on.proxy.lost(), 1);
    let write = async || redis.write_if_newer("k", "mine", v(2), None).await.unwrap();
    assert_eq!(write().await, VersionCheck::AlreadyThere);
    assert_eq!(on.server.command::<String>(&["GET", "k"]), "mine");
    // Another writer that came to the same version, and one that was not heard of.
    let theirs = redis.write_if_newer("k", "theirs", v(2), None).await.unwrap();
    assert_eq!(theirs, VersionCheck::AlreadyThere);
    assert_eq!(on.server.command::<String>(&["GET", "k"]), "mine");
    on.proxy.lose_request(1, "EVAL");
    error_of(redis.write_if_newer("k", "next", v(3), None).await, ErrorKind::Unknown);
    assert_eq!(redis.write_if_newer("k", "next", v(3), None).await.unwrap(), VersionCheck::Accepted);
    assert_eq!(write().await, older(3));
}

#[tokio::test]
async fn the_right_to_the_key_that_remembers_is_needed_before_anything_is_written() {
    let server = RedisServer::start().unwrap();
    server.command::<()>(&["ACL", "SETUSER", "shop", "on", ">secret", "&*", "~*", "+@all", "-hset"]);
    let redis = Redis::connect(&server.url_as("shop", "secret")).await.unwrap();
    error_of(redis.write_if_newer("k", "x", v(1), None).await, ErrorKind::Denied);
    assert_eq!(server.command::<u64>(&["EXISTS", "k", "{k}:fence"]), 0);
    // Whether or not it may take back what it noted: nothing is noted of what is not written.
    server.command::<()>(&["ACL", "SETUSER", "shop", "+hset", "-set", "-hdel"]);
    let redis = Redis::builder(&server.url_as("shop", "secret")).build().unwrap();
    error_of(redis.write_if_newer("k", "x", v(1), None).await, ErrorKind::Denied);
    assert_eq!(server.command::<u64>(&["EXISTS", "k", "{k}:fence"]), 0);
    server.command::<()>(&["ACL", "SETUSER", "shop", "+set"]);
    assert_eq!(redis.write_if_newer("k", "x", v(1), None).await.unwrap(), VersionCheck::Accepted);
}
