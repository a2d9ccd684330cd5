//! Keys of objects that look like something else, and a round trip of them through a store.

use std::collections::BTreeSet;

use gpufile::remote::RemoteOptions;
use testkit::in_threads;
use testkit::random::{self, Random};

/// Returns 1,000 different keys that a store may take, many of which differ only by what the web does to addresses. The
/// store cannot have any of these characters in a key.
pub fn keys(unless: &[char]) -> Vec<String> {
    /// Separated by middle dots.
    const PIECES: &str = "\t·\n·\u{1}·\u{7f}·.·..·a·b·c·model·00001·%20· ·+·%2B·%2b·%·%%·%zz·%2·%2F·%2e·%3F·?·#·&·=·:·@·\\\
        ·\"·'·<·>·|·^·`·{·}·[·]·~·(·)·*·,·;·!·$·.a·a.·..a·\u{e9}·e\u{301}·\u{65e5}\u{672c}·\u{1f600}\
        ·ts=2026-01-01 12:30·_-";
    /// Keys of public reports about clients that changed them.
    const REPORTED: &str = "https%3A%2F%2F0236.com%2F·a%2Fb/c·a/b/c·m\u{e4}ggi.png·/m\u{e4}ggi.png·some/path·some/path/\
        ·example//name.txt·exa//mple·/upload/example·scan?1.dcm·seg#1.dcm·repro~plain/data~x\
        ·fileWithSpecialCharacters+%.jpg·object-2021-04-04+1.txt·object-2021-04-04:2.txt·v0/2:abcde\
        ·dag_run_date=2022-11-26/2022-11-26T13:51:14.934709+00:00.parquet·key name.txt·[x] %.txt·h+i\
        ·a///b·a/./b·a/..·a//·x/.·//..·photos/·abc def·TEST copy.JPG·test!\"$&'()*,:;=@\
        ·Orderbekraftelse2\u{e4}().pdf·foo/bar/baz #%20other cool stuff.txt·path/under_score/amper&sand/file.ext\
        ·\u{c1}rsreikningur.pdf·%C3%81rsreikningur.pdf·bucket1/../bucket2/x·ts=2026%3A01/x·a%20b·a/../b·a#b·a?b";
    let pieces: Vec<_> = PIECES.split('·').collect();
    let (seed, count) = (random::seed(), random::cases(1000) as usize);
    eprintln!("CUFILE_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let mut keys: BTreeSet<_> = REPORTED.split('·').map(str::to_owned).collect();
    while keys.len() < count {
        let parts = 1 + random.below(4);
        let part = |random: &mut Random| -> String {
            match random.below(12) {
                0 => String::new(),
                1 => ".".to_owned(),
                2 => "..".to_owned(),
                _ => (0..1 + random.below(4)).map(|_| random.pick(&pieces)).collect(),
            }
        };
        let key = (0..parts).map(|_| part(&mut random)).collect::<Vec<_>>().join("/");
        let decoded = percent_encoding::percent_decode_str(&key).decode_utf8().ok().map(String::from);
        let others = [key.replace('%', "%25"), key.replace(' ', "%20"), key.replace('+', " ")];
        let new = [key].into_iter().chain(decoded).chain(others);
        keys.extend(new.filter(|key| !matches!(key.as_str(), "" | "." | "..") && !key.contains(unless)));
    }
    keys.into_iter().collect()
}

/// Writes objects with these keys below a root such as `s3://bucket/`. Then reads each, and asserts that it is the right one.
pub fn assert_literal(options: &RemoteOptions, root: &str, keys: &[String]) {
    let bytes = |key: &str| format!("the object {key}").into_bytes();
    let write = |key: &String| {
        let bytes = bytes(key);
        let mut upload = options.upload(&format!("{root}{key}"), bytes.len() as u64)?;
        upload.write(&bytes)?;
        upload.finish()
    };
    let read = |key: &String| {
        let name = format!("{root}{key}");
        let file = options.open(&name)?;
        let mut found = vec![0; file.len_bytes()? as usize];
        file.read_exact_at(&mut found, 0)?;
        assert!(found == bytes(key), "{key:?}: {:?}", String::from_utf8_lossy(&found));
        assert_eq!(file.path().to_str(), Some(name.as_str()));
        Ok(())
    };
    let each = |call: &(dyn Fn(&String) -> gpufile::Result<()> + Sync)| {
        in_threads(keys.chunks(keys.len().div_ceil(8)).map(|keys| {
            move || keys.iter().for_each(|key| call(key).unwrap_or_else(|error| panic!("{key:?}: {error}")))
        }));
    };
    each(&write);
    each(&read);
}
