//! Macros for bindings to C libraries: those of this crate and of `libcufile-sys` are made with them.

/// Makes `Default` clear structs and unions, as C programs do. The bytes 0 must be a value of each type of a field.
/// `cargo xtask regen-bindings` checks that for the bindings.
///
/// ```
/// #[repr(C)]
/// struct Record {
///     number: i32,
///     pointer: *mut i32,
/// }
///
/// cuda_rt_sys::cleared!(Record);
///
/// assert!(Record::default().pointer.is_null() && Record::default().number == 0);
/// ```
#[macro_export]
macro_rules! cleared {
    ($($record:ident),* $(,)?) => {$(
        impl Default for $record {
            /// Returns a value whose bytes are 0.
            fn default() -> Self {
                // SAFETY: all fields are integers, pointers, `Option`s of functions, or made of these.
                unsafe { core::mem::zeroed() }
            }
        }
    )*};
}

/// Declares functions that call those of a shared library, `NAME = SYMBOL(ARGUMENTS) -> RESULT;`, with `SYMBOL since
/// "RELEASE"` for one that is an `Option`. The module needs a type `Library` with these fields, whose `shared` returns it,
/// and `super` a type `Functions`, whose documentation the functions lead to.
#[macro_export]
macro_rules! calls {
    ($($name:ident = $symbol:ident $(since $since:literal)? ($($argument:ident: $ty:ty),*) $(-> $result:ty)?;)*) => {$(
        #[doc = concat!("Calls [`", stringify!($symbol), "`](super::Functions::", stringify!($symbol), "), documented there.")]
        ///
        /// # Safety
        /// As there.
        ///
        /// # Panics
        /// If the library cannot be loaded, or lacks the function.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "C's")]
        pub unsafe fn $name($($argument: $ty),*) $(-> $result)? {
            let function = $crate::calls!(@found $crate::calls!(@library).$symbol, $symbol $(, $since)?);
            // SAFETY: the caller's promise.
            unsafe { function($($argument),*) }
        }
    )*};
    (@library) => { Library::shared().unwrap_or_else(|error| panic!("{error}")) };
    (@found $function:expr, $symbol:ident) => { $function };
    (@found $function:expr, $symbol:ident, $since:literal) => {
        $function.unwrap_or_else(|| panic!(concat!(stringify!($symbol), " needs ", $since, " or newer; the loaded library is older")))
    };
}

#[cfg(test)]
mod tests {
    use std::panic;

    struct Library {
        old: unsafe extern "C" fn(i32) -> i32,
        new: Option<unsafe extern "C" fn(i32) -> i32>,
    }

    unsafe extern "C" fn twice(number: i32) -> i32 {
        2 * number
    }

    impl Library {
        fn shared() -> Result<&'static Self, &'static str> {
            Ok(&Self { old: twice, new: None })
        }
    }

    cuda_rt_sys::calls! {
        by_bare_name = old(number: i32) -> i32;
        too_new = new since "CUDA 99.0"(number: i32) -> i32;
    }

    #[test]
    fn calls_panic_with_the_release_of_a_missing_function() {
        // SAFETY: the functions are those above.
        assert_eq!(unsafe { by_bare_name(4) }, 8);
        // SAFETY: as above.
        let panicked = panic::catch_unwind(|| unsafe { too_new(4) }).unwrap_err();
        let text = panicked.downcast_ref::<&str>().unwrap();
        assert_eq!(*text, "new needs CUDA 99.0 or newer; the loaded library is older");
    }
}
