//! Troubles of objects on servers.

use super::super::Entry;
use super::Trouble;

pub const TROUBLES: &[Trouble] = &[
    Trouble {
        title: "The server of an object does not answer",
        seen: &[
            "cannot open \"http://127.0.0.1:9/a\": the connection to the server failed: Connection refused (os error 111)",
            "cannot read 4194304 bytes at 0 of \"s3://bucket/a\": the server sent too little within 30 seconds",
        ],
        marks: &["the connection to the server failed", "the server sent too little within"],
        entry: Entry {
            meaning: "the bytes of an object did not arrive, also when the request was repeated",
            cause: "a server that is down or overloaded, a wrong port, a firewall, a proxy that is needed, or a slow network",
            remedy: "see the words after the colon; raise the timeout or the number of tries (RemoteOptions); a connection needs 64 KiB within the timeout",
            proof: "`curl -r 0-99 URL` fails or is slow in the same way; `gpufile check URL` shows the time of each step",
        },
    },
    Trouble {
        title: "Objects of a server arrive slowly",
        seen: &[
            "limit         the number of connections: set GPUFILE_NUM_THREADS to more than 64",
            "limit         the processors of this machine, which this program kept busy",
        ],
        marks: &[
            "the number of connections: set gpufile_num_threads",
            "the processors of this machine, which this program kept busy",
            "more connections were not faster",
        ],
        entry: Entry {
            meaning: "reads of an object are slower than the network between the machines",
            cause: "too few connections for the delay of the network, since each of the engine's threads has one request in \
                    flight; TLS, which costs processor time; or a server that limits each client or connection",
            remedy: "set GPUFILE_NUM_THREADS to the number of connections that was fastest; read from a server nearby, \
                     without TLS in a network that you trust; start the machine with more processors",
            proof: "`gpufile check URL` measures 1, 4, 16 and 64 connections, and says what limits them",
        },
    },
];
