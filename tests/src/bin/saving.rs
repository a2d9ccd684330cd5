//! A process to be killed: `saving NUMBER FOLDER` does the save of that number.

use std::env;
use std::path::Path;

use cufile_tests::saves::SAVES;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let [_, number, folder] = &arguments[..] else { panic!("usage: saving NUMBER FOLDER") };
    SAVES[number.parse::<usize>().expect("a number")].save(Path::new(folder));
    // Sanitizers look for leaks at the usual end, and cannot in a process that is traced.
    // SAFETY: nothing has to be put in order.
    unsafe { libc::_exit(0) };
}
