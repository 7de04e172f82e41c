//! What dlock sends for one pair, as the server's MONITOR shows it, to be sent again by the bare client.

use anyhow::{Context, Result, ensure};
use redis::Cmd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use dlock_bench::measure::Pairs;

/// The name of the lock that is taken to see what is sent.
const SEEN: &str = "seen_by_monitor";

/// Both commands of a pair.
pub(crate) struct Recorded {
    pub(crate) acquire: Request,
    pub(crate) release: Request,
}

/// One command. Where the key and the token stood, others are put in.
pub(crate) struct Request(Vec<Vec<Part>>);

enum Part {
    Text(Vec<u8>),
    Key,
    Token,
}

impl Recorded {
    /// Watches one pair of `client` on the server at `url`.
    pub(crate) async fn of(client: &impl Pairs, url: &str) -> Result<Self> {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        // Before it is watched: connections are made and scripts are loaded.
        client.pair(SEEN).await?;
        let mut monitor = BufReader::new(TcpStream::connect(address).await?);
        monitor.write_all(b"MONITOR\r\n").await?;
        let mut line = String::new();
        monitor.read_line(&mut line).await?;
        ensure!(line.starts_with("+OK"), "MONITOR says {line}");
        client.pair(SEEN).await?;
        let mut seen = Vec::new();
        while seen.len() < 2 {
            line.clear();
            monitor.read_line(&mut line).await?;
            // What a script calls is shown as the script's.
            if !line.contains(" lua] ") && line.contains(SEEN) {
                seen.push(words(&line)?);
            }
        }
        let token = seen[0].iter().find_map(|word| token_in(word)).context("the acquire carries no token")?;
        let mut requests = seen.iter().map(|words| Request::new(words, &token));
        let mut next = || requests.next().context("a pair is two commands");
        Ok(Self { acquire: next()?, release: next()? })
    }
}

impl Request {
    fn new(words: &[Vec<u8>], token: &[u8]) -> Self {
        Self(words.iter().map(|word| parts(word, token)).collect())
    }

    pub(crate) fn command(&self, key: &str, token: &str) -> Cmd {
        let mut command = Cmd::new();
        for word in &self.0 {
            if let [Part::Text(text)] = &word[..] {
                command.arg(text);
                continue;
            }
            let mut argument = Vec::with_capacity(64);
            for part in word {
                argument.extend_from_slice(match part {
                    Part::Text(text) => text,
                    Part::Key => key.as_bytes(),
                    Part::Token => token.as_bytes(),
                });
            }
            command.arg(argument);
        }
        command
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn parts(word: &[u8], token: &[u8]) -> Vec<Part> {
    for (what, part) in [(SEEN.as_bytes(), Part::Key), (token, Part::Token)] {
        if let Some(at) = find(word, what) {
            let mut all = parts(&word[..at], token);
            all.push(part);
            all.extend(parts(&word[at + what.len()..], token));
            return all;
        }
    }
    if word.is_empty() { Vec::new() } else { vec![Part::Text(word.to_vec())] }
}

/// 32 hexadecimal digits, by themselves or after a colon: what marks one claim.
fn token_in(word: &[u8]) -> Option<Vec<u8>> {
    let word = std::str::from_utf8(word).ok()?;
    let token = word.rsplit_once(':').map_or(word, |(_, token)| token);
    (token.len() == 32 && token.bytes().all(|b| b.is_ascii_hexdigit())).then(|| token.as_bytes().to_vec())
}

/// The words of a line of MONITOR, which are quoted as in C.
fn words(line: &str) -> Result<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut bytes = line.trim_end().bytes().skip_while(|byte| *byte != b'"');
    while bytes.next() == Some(b'"') {
        let mut word = Vec::new();
        loop {
            let byte = match bytes.next().context("a word has no end")? {
                b'"' => break,
                b'\\' => match bytes.next().context("an escape has no end")? {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => {
                        let digits = [bytes.next().context("a digit")?, bytes.next().context("a digit")?];
                        u8::from_str_radix(std::str::from_utf8(&digits)?, 16)?
                    }
                    other => other,
                },
                other => other,
            };
            word.push(byte);
        }
        words.push(word);
        // The space in between.
        bytes.next();
    }
    ensure!(!words.is_empty(), "no words in {line:?}");
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_monitor_are_read_back() {
        let line = "1.2 [0 127.0.0.1:9] \"EVALSHA\" \"a b\\\"c\" \"\" \"\\x00\\n\\\\\"\r\n";
        let expected: Vec<&[u8]> = vec![b"EVALSHA", b"a b\"c", b"", b"\x00\n\\"];
        assert_eq!(words(line).unwrap(), expected);
    }

    #[test]
    fn key_and_token_are_replaced_wherever_they_stand() {
        let token = "0123456789abcdef0123456789abcdef";
        let words: Vec<Vec<u8>> =
            [format!("p:{{{SEEN}}}"), format!("u:{token}"), "x".to_owned()].map(String::into_bytes).to_vec();
        assert_eq!(token_in(&words[1]).unwrap(), token.as_bytes());
        let command = Request::new(&words, token.as_bytes()).command("k", "t");
        let text = String::from_utf8(command.get_packed_command()).unwrap();
        assert_eq!(text, "*3\r\n$5\r\np:{k}\r\n$3\r\nu:t\r\n$1\r\nx\r\n");
    }
}
