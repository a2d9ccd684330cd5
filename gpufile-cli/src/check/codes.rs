//! The remedy for the code in an error's text, as `gpufile explain` has it.

use crate::explain;

/// Returns the remedy for the code in an error's text. A code of CUDA precedes the cuFile code that it explains.
pub fn remedy(error: &str) -> Option<&'static str> {
    let cuda = numbered(error)
        .filter(|(name, _)| name.starts_with("CUDA_ERROR_") || name.starts_with("cudaError"))
        .find_map(|(_, code)| explain::remedy_of_cuda(code));
    let cufile = || {
        let codes = numbered(error).filter(|(name, _)| name.starts_with("CU_FILE_"));
        codes.filter_map(|(_, code)| i32::try_from(code).ok()).find_map(explain::remedy_of_cufile)
    };
    cuda.or_else(cufile)
}

/// Returns each name in a text that a number in parentheses follows, as in `CU_FILE_INTERNAL_ERROR (5030)`.
fn numbered(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.match_indices(" (").filter_map(|(at, _)| {
        let name = text[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        let (number, _) = text[at + 2..].split_once(')')?;
        Some((name, number.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use cuda_rt_sys::driver::CUresult;
    use cufile::sys::CUfileOpError;

    use super::*;

    #[test]
    fn every_code_with_a_name_has_its_remedy() {
        let codes = (5001..5050).map(CUfileOpError::from_raw).filter(|code| code.name().is_some());
        assert!(codes.clone().count() > 45);
        for code in codes {
            let text = format!("cuFileDriverOpen: {} ({}), text", code.name().unwrap(), code.as_raw());
            assert!(remedy(&text).is_some(), "{text}");
        }
        // The codes with which cuInit fails.
        for code in [1, 2, 3, 34, 46, 100, 101, 102, 214, 304, 801, 802, 803, 804, 805, 807, 999] {
            let text = format!("cuInit: {:?} ({code})", CUresult::from_raw(code));
            assert!(text.contains("CUDA_ERROR_") && remedy(&text).is_some(), "{text}");
        }
        assert!(remedy("cudaRuntimeGetVersion: cudaErrorInsufficientDriver (35)").is_some());
    }

    #[test]
    fn code_of_cuda_explains_the_code_of_cufile() {
        let error =
            "cuFileDriverOpen: CU_FILE_CUDA_DRIVER_ERROR (5011), text, CUDA_ERROR_SYSTEM_NOT_READY (802)";
        assert!(remedy(error).unwrap().contains("fabricmanager"));
        for text in ["", "no code", "CU_FILE_X (1)", "CUDA_ERROR_X (77777)", "file (5030)", "CU_FILE_X (5030"]
        {
            assert_eq!(remedy(text), None, "{text}");
        }
    }
}
