//! Access Control Services of PCIe bridges, in their configuration space.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acs {
    None,
    /// Present, and transfers between peers go straight.
    Off,
    /// The bridge sends transfers between peers up to the root complex.
    Redirects,
    /// Unreadable: only root can read the whole configuration space.
    Unknown,
}

const EXTENDED: usize = 0x100;
const ACS: u32 = 0x000d;
/// Bits of the control register: request redirect, completion redirect, and egress control.
const REDIRECTS: u8 = 1 << 2 | 1 << 3 | 1 << 5;

impl Acs {
    /// Parses 4096 bytes if the bridge is PCIe and the reader is root, otherwise fewer.
    pub fn of_config(config: &[u8]) -> Self {
        if config.len() <= EXTENDED {
            // A reader without privileges gets 64 bytes. A conventional bridge has 256.
            return if config.len() == EXTENDED { Acs::None } else { Acs::Unknown };
        }
        let mut at = EXTENDED;
        // Each capability takes eight bytes at least, so a list without end is broken.
        for _ in 0..(config.len() - EXTENDED) / 8 {
            let Some(header) = config.get(at..at + 4) else { return Acs::Unknown };
            let header = u32::from_le_bytes(header.try_into().expect("four bytes"));
            if header & 0xffff == ACS {
                return match config.get(at + 6) {
                    None => Acs::Unknown,
                    Some(control) if control & REDIRECTS != 0 => Acs::Redirects,
                    Some(_) => Acs::Off,
                };
            }
            at = (header >> 20) as usize;
            if at < EXTENDED {
                return Acs::None;
            }
        }
        Acs::Unknown
    }

    /// Completes a state that only root can read, with the list of bridges on which nvidia-fs sees redirection.
    pub fn or_listed(self, address: &str, listed: Option<&[String]>) -> Self {
        match (self, listed) {
            (Acs::Unknown, Some(listed)) if listed.iter().any(|bridge| bridge == address) => Acs::Redirects,
            (Acs::Unknown, Some(_)) => Acs::Off,
            (known, _) => known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_of_nvidia_fs_completes_what_only_root_reads() {
        let listed = Some(&["0000:01:00.0".to_owned()][..]);
        assert_eq!(Acs::Unknown.or_listed("0000:01:00.0", listed), Acs::Redirects);
        assert_eq!(Acs::Unknown.or_listed("0000:02:00.0", listed), Acs::Off);
        assert_eq!(Acs::None.or_listed("0000:01:00.0", listed), Acs::None);
        assert_eq!(Acs::Unknown.or_listed("0000:01:00.0", None), Acs::Unknown);
    }

    fn config(capabilities: &[(usize, u32, u8)]) -> Vec<u8> {
        let mut config = vec![0; 4096];
        for (index, &(at, id, control)) in capabilities.iter().enumerate() {
            let next = capabilities.get(index + 1).map_or(0, |&(next, ..)| next) as u32;
            config[at..at + 4].copy_from_slice(&(next << 20 | 1 << 16 | id).to_le_bytes());
            config[at + 6] = control;
        }
        config
    }

    #[test]
    fn control_bits_of_the_capability_decide() {
        let of = |control| {
            Acs::of_config(&config(&[(0x100, 1, 0xff), (0x148, 0x19, 0xff), (0x220, 0x0d, control)]))
        };
        // Source validation, translation blocking and direct translated requests redirect nothing.
        for control in [0, 1, 1 << 1, 1 << 6] {
            assert_eq!(of(control), Acs::Off, "{control:#x}");
        }
        for control in [1 << 2, 1 << 3, 1 << 5, 0x1d] {
            assert_eq!(of(control), Acs::Redirects, "{control:#x}");
        }
    }

    #[test]
    fn short_and_broken_spaces_are_unknown() {
        assert_eq!(Acs::of_config(&[]), Acs::Unknown);
        assert_eq!(Acs::of_config(&[0; 64]), Acs::Unknown);
        assert_eq!(Acs::of_config(&[0; 256]), Acs::None);
        assert_eq!(Acs::of_config(&config(&[(0x100, 1, 0)])), Acs::None);
        assert_eq!(Acs::of_config(&[0; 4096]), Acs::None);
        let mut circle = config(&[(0x100, 1, 0), (0x148, 2, 0)]);
        circle[0x148..0x14c].copy_from_slice(&(0x100_u32 << 20 | 2).to_le_bytes());
        assert_eq!(Acs::of_config(&circle), Acs::Unknown);
        assert_eq!(Acs::of_config(&config(&[(0x100, 1, 0), (0xffc, 0x0d, 0)][..1])[..0x101]), Acs::Unknown);
        assert_eq!(Acs::of_config(&[0xff; 4096]), Acs::Unknown);
    }
}
