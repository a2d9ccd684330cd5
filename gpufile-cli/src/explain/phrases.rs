//! A few words by which programs in C and Python name a code without its number.

use super::code::Code;

/// Words in lower case, and the code that they name.
pub const PHRASES: &[(&str, Code)] = &[
    ("version read error", Code::CuFile(5005)),
    ("driver shutdown in progress", Code::CuFile(5006)),
    ("not supported on current platform", Code::CuFile(5007)),
    ("not supported on current file", Code::CuFile(5008)),
    ("not supported on current gpu", Code::CuFile(5009)),
    ("driver ioctl error", Code::CuFile(5010)),
    ("invalid pointer memory type", Code::CuFile(5013)),
    ("exceeds allocated address range", Code::CuFile(5014)),
    ("cuda context mismatch", Code::CuFile(5015)),
    ("beyond maximum pinned size", Code::CuFile(5016)),
    ("beyond mapped size", Code::CuFile(5017)),
    ("unsupported file type", Code::CuFile(5018)),
    ("unsupported file open flags", Code::CuFile(5019)),
    ("direct io not set", Code::CuFile(5020)),
    ("pointer already registered", Code::CuFile(5023)),
    ("pointer lookup failure", Code::CuFile(5024)),
    ("driver is already open", Code::CuFile(5026)),
    ("descriptor is not registered", Code::CuFile(5027)),
    ("descriptor is already registered", Code::CuFile(5028)),
    ("cuda error: invalid argument", Code::Cuda(1)),
    ("cuda error: operation not permitted", Code::Cuda(800)),
    ("cuda out of memory", Code::Cuda(2)),
    ("cuda error: out of memory", Code::Cuda(2)),
    ("cuda error: initialization error", Code::Cuda(3)),
    ("stub library", Code::Cuda(34)),
    ("insufficient for cuda runtime", Code::Cuda(35)),
    ("busy or unavailable", Code::Cuda(46)),
    ("no cuda-capable device", Code::Cuda(100)),
    ("invalid device ordinal", Code::Cuda(101)),
    ("no kernel image", Code::Cuda(209)),
    ("uncorrectable ecc", Code::Cuda(214)),
    ("illegal memory access", Code::Cuda(700)),
    ("device-side assert", Code::Cuda(710)),
    ("unspecified launch failure", Code::Cuda(719)),
    ("system not yet initialized", Code::Cuda(802)),
    ("unsupported display driver", Code::Cuda(803)),
    ("forward compatibility was attempted", Code::Cuda(804)),
    ("cuda unknown error", Code::Cuda(999)),
];

/// Returns the codes that a line in lower case names by these words.
pub fn of(line: &str) -> impl Iterator<Item = Code> {
    PHRASES.iter().filter(move |(phrase, _)| line.contains(phrase)).map(|(_, code)| *code)
}
