//! Stands for a long link to a server, for measurements: `delay HOST:PORT MILLISECONDS [WINDOW]`.
//!
//! It prints the address that takes the place of the server's, and ends with its input. The milliseconds are those of a round
//! trip. The window is the most bytes of a connection that are on their way.

use std::error::Error;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::time::Duration;

use testkit::delay::Link;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [to, millis, window @ ..] = &arguments[..] else {
        return Err("expected HOST:PORT MILLISECONDS [WINDOW]".into());
    };
    let to = to.to_socket_addrs()?.next().ok_or("the server has no address")?;
    let window = window.first().map(|window| window.parse()).transpose()?;
    let link = Link::new(to, Duration::from_secs_f64(millis.parse::<f64>()? / 1000.0), window);
    println!("{}", link.address());
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
