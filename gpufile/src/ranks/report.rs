//! The report that each rank sends with an exchange: its plan, and its failure if it has one.

use super::RankError;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// A number that is the same for the same plan.
    pub plan: u64,
    /// The start of the rank's error.
    pub failure: Option<String>,
}

impl Report {
    /// The bytes of a report: the plan, the length of the text or the largest number for none, and the text.
    pub const LEN_BYTES: usize = 512;
    const TEXT: usize = 10;

    pub fn to_bytes(&self) -> [u8; Self::LEN_BYTES] {
        let mut bytes = [0; Self::LEN_BYTES];
        bytes[..8].copy_from_slice(&self.plan.to_le_bytes());
        let text = self.failure.as_deref().unwrap_or_default();
        let most = Self::LEN_BYTES - Self::TEXT;
        let len = (0..=text.len().min(most)).rev().find(|len| text.is_char_boundary(*len)).unwrap_or(0);
        bytes[Self::TEXT..Self::TEXT + len].copy_from_slice(&text.as_bytes()[..len]);
        let len = if self.failure.is_some() { len as u16 } else { u16::MAX };
        bytes[8..Self::TEXT].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    pub fn of_bytes(bytes: &[u8]) -> Self {
        let plan = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let len = u16::from_le_bytes(bytes[8..Self::TEXT].try_into().expect("two bytes"));
        let text = || String::from_utf8_lossy(&bytes[Self::TEXT..][..usize::from(len)]).into_owned();
        Self { plan, failure: (len != u16::MAX).then(text) }
    }

    /// Fails alike on all ranks if one failed, or plans differ.
    ///
    /// # Errors
    /// [`RankError::Failed`], [`RankError::Differs`].
    pub fn check(reports: &[Self]) -> Result<(), RankError> {
        for (rank, report) in reports.iter().enumerate() {
            if let Some(message) = &report.failure {
                return Err(RankError::Failed { rank, message: message.clone() });
            }
        }
        match reports.iter().position(|report| report.plan != reports[0].plan) {
            Some(rank) => Err(RankError::Differs { rank }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_way_and_long_texts_are_cut() {
        let most = Report::LEN_BYTES - Report::TEXT;
        for (text, sent) in [
            (None, None),
            (Some(String::new()), Some(0)),
            (Some("a".repeat(most + 9)), Some(most)),
            (Some("é".repeat(most)), Some(most)),
            (Some("é".repeat(most) + "a"), Some(most)),
            (Some("a".to_owned() + &"é".repeat(most)), Some(most - 1)),
        ] {
            let report = Report { plan: u64::MAX - 7, failure: text.clone() };
            let found = Report::of_bytes(&report.to_bytes());
            assert_eq!(found.plan, report.plan);
            assert_eq!(found.failure.as_ref().map(String::len), sent);
            assert_eq!(found.failure.is_some(), text.is_some());
            assert!(text.unwrap_or_default().starts_with(&found.failure.unwrap_or_default()));
        }
    }

    #[test]
    fn the_first_failed_or_different_rank_is_named() {
        let report = |plan, failure: Option<&str>| Report { plan, failure: failure.map(str::to_owned) };
        assert!(Report::check(&[report(1, None), report(1, None)]).is_ok());
        let text = |reports: &[Report]| Report::check(reports).unwrap_err().to_string();
        let failed = [report(1, None), report(0, Some("no file")), report(0, Some("no room"))];
        assert_eq!(text(&failed), "rank 1 failed: no file");
        assert!(
            text(&[report(1, None), report(1, None), report(2, None)]).starts_with("rank 2 asked for other")
        );
    }
}
